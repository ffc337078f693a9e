// Looks at every box of a picture.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "topo/svg_layout.hpp"

namespace ddp::tools::test {

inline void visit(const Box& box, const std::function<void(const Box&)>& action) {
  action(box);
  for (const Box& child : box.children) visit(child, action);
}

inline void for_each_box(const Picture& picture, const std::function<void(const Box&)>& action) {
  for (const Box& box : picture.boxes) visit(box, action);
}

inline int count(const Picture& picture, BoxKind kind) {
  int number = 0;
  for_each_box(picture, [&](const Box& box) { number += box.kind == kind ? 1 : 0; });
  return number;
}

inline bool contains(const Rect& outer, const Rect& inner) {
  return inner.x >= outer.x && inner.y >= outer.y && inner.x + inner.width <= outer.x + outer.width &&
         inner.y + inner.height <= outer.y + outer.height;
}

inline bool overlap(const Rect& a, const Rect& b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

/// The room that a line of text takes, by the same estimate as the layout's.
inline Rect extent(const TextLine& line) {
  const double width = text_width(line.text, line.size, line.bold);
  return {.x = line.centred ? line.x - width / 2 : line.x,
          .y = line.y - line.size * 0.8,
          .width = width,
          .height = line.size};
}

inline void check_siblings(const std::vector<Box>& boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(overlap(boxes[i].rect, boxes[j].rect)) << boxes[i].hover << " and " << boxes[j].hover;
    }
  }
}

/// Siblings do not overlap, children and texts lie in their box, and no text is too small or under a child.
inline void check_boxes(const Picture& picture) {
  check_siblings(picture.boxes);
  const Rect page{.x = 0, .y = 0, .width = picture.width, .height = picture.height};
  for (const Box& box : picture.boxes) EXPECT_TRUE(contains(page, box.rect)) << box.hover;
  for_each_box(picture, [](const Box& box) {
    EXPECT_GT(box.rect.width, 0);
    EXPECT_GT(box.rect.height, 0);
    check_siblings(box.children);
    for (const Box& child : box.children) EXPECT_TRUE(contains(box.rect, child.rect)) << child.hover;
    for (const TextLine& line : box.lines) {
      EXPECT_GE(line.size, kSmallText);
      EXPECT_TRUE(contains(box.rect, extent(line))) << line.text << " in " << box.hover;
      for (const Box& child : box.children) EXPECT_FALSE(overlap(child.rect, extent(line))) << line.text;
    }
  });
}

}  // namespace ddp::tools::test
