#include "compression/reference_codec.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace eps {
namespace {

using Create = std::function<absl::StatusOr<std::unique_ptr<ReferenceCodec>>(
    const std::vector<std::string>& parameters)>;

// Filled before main and read-only afterwards. Never destroyed.
std::map<std::string, Create>& Registry() {
  static auto* const registry = new std::map<std::string, Create>();
  return *registry;
}

}  // namespace

ReferenceRegistration::ReferenceRegistration(std::string family, Create create) {
  EPS_CHECK_MSG(Registry().emplace(family, std::move(create)).second,
                "two references for codec " << family);
}

absl::StatusOr<std::unique_ptr<ReferenceCodec>> NewReferenceCodec(absl::string_view name) {
  std::vector<std::string> pieces = absl::StrSplit(name, ':');
  const auto create = Registry().find(pieces.front());
  if (create == Registry().end()) {
    return absl::InvalidArgumentError(absl::StrCat("codec \"", name, "\" has no reference"));
  }
  pieces.erase(pieces.begin());
  return create->second(pieces);
}

}  // namespace eps
