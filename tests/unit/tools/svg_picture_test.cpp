// The picture is well-formed XML that says what the layout says, with nothing in it that runs or loads.
#include "topo/svg_picture.hpp"

#include <gmock/gmock.h>

#include <cstdio>
#include <functional>
#include <pugixml.hpp>
#include <set>

#include "unit/tools/picture_checks.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

pugi::xml_document parse(const std::string& svg) {
  pugi::xml_document document;
  const pugi::xml_parse_result result = document.load_string(svg.c_str(), pugi::parse_full);
  EXPECT_TRUE(result) << result.description() << " at " << result.offset;
  return document;
}

Rect rect_of(const pugi::xml_node& group) {
  const pugi::xml_node rect = group.child("rect");
  return {.x = rect.attribute("x").as_double(),
          .y = rect.attribute("y").as_double(),
          .width = rect.attribute("width").as_double(),
          .height = rect.attribute("height").as_double()};
}

std::size_t count_groups(const pugi::xml_document& document, const char* kind) {
  return document.select_nodes((std::string("//g[@class='") + kind + "']").c_str()).size();
}

TEST(SvgPicture, HasOneGroupForEachThing) {
  const auto document = parse(draw_svg(test::sample_report()));
  const pugi::xml_node root = document.document_element();
  EXPECT_STREQ(root.name(), "svg");
  EXPECT_STREQ(root.attribute("version").value(), "1.1");
  EXPECT_EQ(count_groups(document, "machine"), 1U);
  EXPECT_EQ(count_groups(document, "package"), 2U);
  EXPECT_EQ(count_groups(document, "numa"), 2U);
  EXPECT_EQ(count_groups(document, "core"), 8U);
  EXPECT_EQ(count_groups(document, "gpu"), 4U);
  EXPECT_EQ(count_groups(document, "nic"), 3U);
  EXPECT_EQ(count_groups(document, "legend"), 1U);
  EXPECT_EQ(document.select_nodes("//g[@class='numa'][1]/g[@class='gpu']").size(), 4U) << "not inside a NUMA node";
}

TEST(SvgPicture, BoxesLieInTheViewBoxAndBesideEachOther) {
  const auto document = parse(draw_svg(test::sample_job()));
  const pugi::xml_node root = document.document_element();
  double width = 0;
  double height = 0;
  ASSERT_EQ(std::sscanf(root.attribute("viewBox").value(), "0 0 %lf %lf", &width, &height), 2);
  const Rect view{.x = 0, .y = 0, .width = width, .height = height};
  const std::function<void(const pugi::xml_node&)> check = [&](const pugi::xml_node& parent) {
    std::vector<Rect> siblings;
    for (const pugi::xml_node& group : parent.children("g")) {
      const Rect rect = rect_of(group);
      EXPECT_GT(rect.width, 0);
      EXPECT_TRUE(test::contains(view, rect));
      for (const Rect& other : siblings) EXPECT_FALSE(test::overlap(rect, other));
      siblings.push_back(rect);
      check(group);
    }
  };
  check(root);
}

TEST(SvgPicture, ColoursTellRanksApart) {
  const auto document = parse(draw_svg(test::sample_report()));
  std::set<std::string> fills;
  for (const auto& node : document.select_nodes("//g[@class='core']/rect"))
    fills.insert(node.node().attribute("fill").value());
  EXPECT_EQ(fills.size(), 4U);
}

TEST(SvgPicture, RanksBeyondThePaletteHavePatternsThatAreDefined) {
  Report report = test::sample_report();
  auto& rows = report.kinds[0].rows;
  const RankRow model = rows[0];
  rows.clear();
  for (int local_rank = 0; local_rank < 40; ++local_rank) {
    rows.push_back(model);
    rows.back().local_rank = local_rank;
    rows.back().ranks[0].rank = local_rank;
  }
  const auto document = parse(draw_svg(report));
  std::set<std::string> fills;
  for (const auto& node : document.select_nodes("//g[@class='legend']/g[@class='swatch']/rect")) {
    const std::string fill = node.node().attribute("fill").value();
    fills.insert(fill);
    if (!fill.starts_with("url(#")) continue;
    const std::string id = fill.substr(5, fill.size() - 6);
    EXPECT_EQ(document.select_nodes(("//pattern[@id='" + id + "']").c_str()).size(), 1U) << id;
  }
  EXPECT_EQ(fills.size(), 35U);
}

TEST(SvgPicture, StandsAloneAndRunsNothing) {
  const std::string svg = draw_svg(test::sample_job());
  for (const char* word : {"<script", "href", "@import", "onload", "<image", "<foreignObject", "<!DOCTYPE"}) {
    EXPECT_THAT(svg, Not(HasSubstr(word)));
  }
}

TEST(SvgPicture, AnyTextIsEscaped) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[0].model = "</text><script>\x01\xff&";
  parts.source = "]]>\"'";
  report.kinds[0].topology = Topology::from_parts(std::move(parts));
  report.kinds[0].hosts = {"<h&>"};
  const auto document = parse(draw_svg(report));
  EXPECT_TRUE(document.select_nodes("//script").empty());
  EXPECT_EQ(document.select_nodes("//g[@class='gpu']/text[contains(., '</text>')]").size(), 1U);
  EXPECT_EQ(document.select_nodes("//g[@class='machine']/text[contains(., '<h&>')]").size(), 1U);
}

}  // namespace
}  // namespace ddp::tools
