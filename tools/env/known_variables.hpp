// What is known of variables, as text: the page of all, one variable, and names that are still
// unknown.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "diagnostics/environment/nccl_file.hpp"

namespace ddp::tools::env {

/// The whole page, in Markdown.
std::string known_variables_page();

/// The list of libddp's own variables in docs/reference/environment.md, a line each.
std::string own_variables_list();

/// What is known of one; empty for names that are in no table.
std::string explain_variable(std::string_view name);

/// The names that this NCCL reads and the table lacks, one a line.
std::string names_not_in_table(const diagnostics::NcclFile& nccl);

/// PyTorch's list (torch/nn/parallel/distributed.py, _dump_DDP_relevant_env_vars), from @p variables.
std::string torch_list(const std::map<std::string, std::string, std::less<>>& variables);

}  // namespace ddp::tools::env
