#include "worker/exec/torch_guard.h"

#include <exception>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace eps {

const char kDeviceMemoryKeys[] = "lower training.micro_batch_size or set worker.stash=host";
const char kPinnedMemoryKeys[] =
    "this is host memory that the device copies from and to: lower worker.prefetch, "
    "worker.stash_host or training.micro_batch_size, or raise the limit of locked memory";

absl::Status CatchTorch(absl::string_view what, const std::function<void()>& body,
                        absl::string_view keys) {
  try {
    body();
    return absl::OkStatus();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": out of device memory: ", error.what_without_backtrace(), "; ", keys));
  } catch (const c10::Error& error) {
    // A failed allocation of pinned memory has no type of its own.
    if (absl::StrContains(error.what_without_backtrace(), "out of memory")) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": ", error.what_without_backtrace(), "; ", keys));
    }
    return absl::InternalError(absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": out of memory; ", keys));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace eps
