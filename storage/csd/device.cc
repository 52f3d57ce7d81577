#include "storage/csd/device.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

const char* NameOf(Place::Where where) {
  return where == Place::Where::kMedia ? "the medium" : "device memory";
}

}  // namespace

std::string Describe(const Place& place) {
  return absl::StrCat(place.offset, " of ", NameOf(place.where));
}

absl::Status CheckTransfer(const DeviceInfo& info, const char* operation, Place place,
                           uint64_t bytes) {
  const uint64_t size = place.where == Place::Where::kMedia ? info.media_bytes : info.dram_bytes;
  const auto where = [&] {
    return absl::StrCat("device ", info.name, ": ", operation, " of ", bytes, " bytes at ",
                        Describe(place));
  };
  if (place.offset % kDiskBlock != 0 || bytes % kDiskBlock != 0 || bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(), ": offset and size must be multiples of ", kDiskBlock));
  }
  if (place.offset > size || bytes > size - place.offset) {
    return absl::OutOfRangeError(absl::StrCat(where(), ", which has ", size));
  }
  return absl::OkStatus();
}

absl::Status CheckCopy(const DeviceInfo& info, Place from, Place to, uint64_t bytes) {
  EPS_RETURN_IF_ERROR(CheckTransfer(info, "Copy", from, bytes));
  EPS_RETURN_IF_ERROR(CheckTransfer(info, "Copy", to, bytes));
  if (from.where == to.where) {
    return absl::InvalidArgumentError(absl::StrCat("device ", info.name, ": Copy of ", bytes,
                                                   " bytes within ", NameOf(from.where)));
  }
  return absl::OkStatus();
}

}  // namespace eps
