#include "diagnostics/environment/environment_message.hpp"

#include "base/message.hpp"
#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {

Bytes encode(const RankEnvironment& environment) {
  if (base::fits(environment)) return base::encode(environment);
  RankEnvironment smaller = environment;
  std::erase_if(smaller.variables, [](const RankVariable& each) { return !family_of(each.name); });
  if (base::fits(smaller)) return base::encode(smaller);
  smaller.variables.clear();
  smaller.files.clear();
  smaller.findings = {{.rule = "env-size",
                       .text = "the variables are larger than 128 KiB, too large to be sent",
                       .remedy = "shorten them"}};
  return base::encode(smaller);
}

}  // namespace ddp::diagnostics
