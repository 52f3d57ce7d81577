// The files of planner/hardware/, embedded in the program by name.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "planner/hardware.h"
#include "planner/hardware_a100_smartssd_10.h"
#include "planner/hardware_a5000_smartssd_1.h"
#include "planner/hardware_a5000_smartssd_6.h"
#include "planner/hardware_h100_host.h"
#include "planner/hardware_h200_node.h"
#include "planner/hardware_mi210_hbm3_pim.h"
#include "planner/hardware_mixed_cluster.h"
#include "planner/hardware_two_core_box.h"
#include "planner/hardware_v100_16gb_512gb.h"

namespace eps::planner {
namespace {

constexpr std::pair<const char*, const char*> kHardwareExamples[] = {
    {"two_core_box", kTwoCoreBoxYaml},
    {"v100_16gb_512gb", kV10016gb512gbYaml},
    {"a5000_smartssd_1", kA5000Smartssd1Yaml},
    {"a5000_smartssd_6", kA5000Smartssd6Yaml},
    {"a100_smartssd_10", kA100Smartssd10Yaml},
    {"mi210_hbm3_pim", kMi210Hbm3PimYaml},
    {"h100_host", kH100HostYaml},
    {"h200_node", kH200NodeYaml},
    {"mixed_cluster", kMixedClusterYaml},
};

}  // namespace

std::vector<std::string> HardwareExamples() {
  std::vector<std::string> names;
  for (const auto& [name, yaml] : kHardwareExamples) names.emplace_back(name);
  return names;
}

absl::StatusOr<std::string> HardwareExample(absl::string_view name) {
  for (const auto& [known, yaml] : kHardwareExamples) {
    if (known == name) return std::string(yaml);
  }
  return absl::NotFoundError(absl::StrCat("--hardware: neither a file nor an example is named ",
                                          name,
                                          "; examples: ", absl::StrJoin(HardwareExamples(), ", ")));
}

}  // namespace eps::planner
