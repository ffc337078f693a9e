#include "base/imitated_launchers.hpp"

#include <charconv>
#include <cstddef>

#include <fmt/format.h>

#include "base/errors.hpp"

namespace ddp::base {

ChosenWords read_words(const std::string& attempted, std::string_view text,
                       const std::array<std::string_view, 2>& words) {
  ChosenWords chosen;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    if (word == words[0]) {
      chosen.first = true;
    } else if (word == words[1]) {
      chosen.second = true;
    } else {
      throw_invalid_argument(attempted, fmt::format("'{}' is neither {} nor {}", word, words[0], words[1]),
                             fmt::format("give one, or both: {},{}", words[0], words[1]));
    }
    if (comma == std::string_view::npos) return chosen;
    text.remove_prefix(comma + 1);
  }
}

std::string text_of(ChosenWords chosen, const std::array<std::string_view, 2>& words) {
  std::string text{chosen.first ? words[0] : std::string_view{}};
  if (chosen.second) text += fmt::format("{}{}", chosen.first ? "," : "", words[1]);
  return text;
}

Crossing crossing_of(const std::vector<int>& ranks_of_nodes, int node_rank, int local_rank) {
  Crossing crossing;
  for (std::size_t node = 0; node < ranks_of_nodes.size(); ++node) {
    if (ranks_of_nodes[node] <= local_rank) continue;
    if (static_cast<int>(node) < node_rank) ++crossing.rank;
    ++crossing.size;
  }
  return crossing;
}

std::vector<int> read_tasks_per_node(std::string_view text) {
  constexpr int kMostNodes = 65'536;
  std::vector<int> tasks;
  const auto take_number = [&text](int& number) {
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (status != std::errc{} || number < 1) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
  };
  while (true) {
    int number = 0;
    int times = 1;
    if (!take_number(number)) return {};
    if (text.starts_with("(x")) {
      text.remove_prefix(2);
      if (!take_number(times) || !text.starts_with(')')) return {};
      text.remove_prefix(1);
    }
    if (times > kMostNodes - static_cast<int>(tasks.size())) return {};
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), number);
    if (text.empty()) return tasks;
    if (!text.starts_with(',')) return {};
    text.remove_prefix(1);
  }
}

ImitatedVariables openmpi_variables(const TorchrunEnvironment& worker) {
  const std::string prefix = "OMPI_COMM_WORLD_";
  const std::string local_rank = std::to_string(worker.local_rank);
  return {{prefix + "RANK", std::to_string(worker.rank)},
          {prefix + "SIZE", std::to_string(worker.world_size)},
          {prefix + "LOCAL_RANK", local_rank},
          {prefix + "LOCAL_SIZE", std::to_string(worker.local_world_size)},
          {prefix + "NODE_RANK", local_rank}};  // among those of its node, by Open MPI's words
}

ImitatedVariables horovod_variables(const TorchrunEnvironment& worker, Crossing crossing, const std::string& host) {
  const std::string prefix = "HOROVOD_";
  return {{prefix + "RANK", std::to_string(worker.rank)},
          {prefix + "SIZE", std::to_string(worker.world_size)},
          {prefix + "LOCAL_RANK", std::to_string(worker.local_rank)},
          {prefix + "LOCAL_SIZE", std::to_string(worker.local_world_size)},
          {prefix + "CROSS_RANK", std::to_string(crossing.rank)},
          {prefix + "CROSS_SIZE", std::to_string(crossing.size)},
          {prefix + "HOSTNAME", host}};
}

}  // namespace ddp::base
