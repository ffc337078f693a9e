// Whether what ranks have submitted under one name fits together, and how to say where not.
#pragma once

#include <map>
#include <optional>
#include <string>

#include <ddp/error.hpp>

#include "named/messages.hpp"

namespace ddp::named {

/// With its number, where it has one.
std::string full_name(const Key& key);
/// "all_reduce 'layer1.weight'", with what is not printable escaped, and cut where it is long.
std::string name_of(const Key& key);
/// "float32[10, 3], sum": all that is compared.
std::string text_of(Kind kind, const Facts& facts);

/// The same for what fits together: without first dimensions of all_gather and all_to_all.
Facts compared_part(Kind kind, Facts facts);
/// Whether it is that of @p facts.
bool is_compared_part(const Facts& compared, Kind kind, const Facts& facts);

/// Whether one exchange can take both: reductions alike but for names and shapes. As ranks' facts have been compared,
/// they come to the same answer.
bool may_be_fused(const Request& one, const Request& other) noexcept;

/// @param facts by rank of the world. Nothing if they fit together.
std::optional<ErrorDetail> compare(const Key& key, const std::map<int, Facts>& facts);

}  // namespace ddp::named
