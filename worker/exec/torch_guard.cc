#include "worker/exec/torch_guard.h"

#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace eps {

absl::Status CatchTorch(absl::string_view what, const std::function<void()>& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": out of device memory: ", error.what_without_backtrace(),
                     "; lower training.micro_batch_size or set worker.stash=host"));
  } catch (const c10::Error& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": out of memory; lower training.micro_batch_size"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace eps
