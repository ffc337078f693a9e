// What a forward pass returned: its tensors, and what of the autograd graph they reach.
#pragma once

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace ddp::torch {

/// Appends the tensors of @p value to @p found; false if it is of a type that cannot be looked into. A program
/// teaches its own type by a function collect_tensors(const Type&, std::vector<at::Tensor>&) beside it.
template <class Value>
bool find_tensors(const Value& value, std::vector<at::Tensor>& found) {
  const auto find_in_all = [&](const auto&... parts) { return (find_tensors(parts, found) & ... & true); };
  if constexpr (std::is_convertible_v<const Value&, at::Tensor>) {
    found.push_back(value);
    return true;
  } else if constexpr (requires { collect_tensors(value, found); }) {
    collect_tensors(value, found);
    return true;
  } else if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
    return true;
  } else if constexpr (requires {
                         value.has_value();
                         *value;
                       }) {
    return !value.has_value() || find_tensors(*value, found);
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    return std::apply(find_in_all, value);
  } else if constexpr (requires {
                         value.begin()->key();
                         value.begin()->value();
                       }) {  // torch::OrderedDict
    bool known = true;
    for (const auto& item : value) known = find_tensors(item.value(), found) && known;
    return known;
  } else if constexpr (requires {
                         typename Value::mapped_type;
                         value.begin();
                       }) {
    bool known = true;
    for (const auto& [key, mapped] : value) known = find_tensors(mapped, found) && known;
    return known;
  } else if constexpr (requires {
                         value.begin();
                         value.end();
                       }) {
    bool known = true;
    for (const auto& part : value) known = find_tensors(part, found) && known;
    return known;
  } else {
    return false;
  }
}

/// All nodes of the graph that a backward pass from @p outputs can come to.
inline std::unordered_set<const ::torch::autograd::Node*> reachable_nodes(const std::vector<at::Tensor>& outputs) {
  std::unordered_set<const ::torch::autograd::Node*> seen;
  std::vector<const ::torch::autograd::Node*> waiting;
  const auto visit = [&](const ::torch::autograd::Edge& edge) {
    const ::torch::autograd::Node* const node = edge.function.get();
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) visit(::torch::autograd::impl::gradient_edge(output));
  }
  while (!waiting.empty()) {
    const ::torch::autograd::Node* const node = waiting.back();
    waiting.pop_back();
    for (const ::torch::autograd::Edge& edge : node->next_edges()) visit(edge);
  }
  return seen;
}

}  // namespace ddp::torch
