#ifndef EPS_BASE_PLUGIN_SHARED_OBJECT_H_
#define EPS_BASE_PLUGIN_SHARED_OBJECT_H_

// Loads the shared objects of plug-ins, which users build outside of this tree.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps {

// The largest file of a plug-in.
inline constexpr uint64_t kMaxPluginBytes = uint64_t{64} << 20;

// The file of a plug-in, read once: what is loaded is what was hashed, even if the file changes
// meanwhile. Plain value.
struct PluginFile {
  std::string path;
  std::string bytes;
  std::string sha256;  // of the bytes, 64 hexadecimal digits
};

// Reads a file. `kind` ("updater") is for the error: with an `expected_sha256` (64 hexadecimal
// digits), FailedPrecondition with both digests if the file has another one. All errors begin with
// the path: NotFound or PermissionDenied for the file, InvalidArgument if it is too large or no
// regular file.
absl::StatusOr<PluginFile> ReadPluginFile(const std::string& path, absl::string_view kind,
                                          absl::string_view expected_sha256);

// Loads the object, which stays loaded until the process ends, and returns the address of the
// function `symbol`. This runs code of the object, with all rights of this process.
// InvalidArgument, which begins with the path, if it is no shared object for this machine or does
// not export the function; `header` is the file that tells its author more.
absl::StatusOr<void*> LoadPluginSymbol(const PluginFile& file, const char* symbol,
                                       const char* header);

// InvalidArgument for something in the plug-in of that path.
template <class... Parts>
absl::Status InvalidPlugin(const std::string& path, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", parts...));
}

// Copies a name that a plug-in gives to something, `of`, for which the error is. InvalidArgument
// unless it is 1 to 63 of a-z, 0-9 and _, beginning with a letter.
absl::StatusOr<std::string> CopyPluginName(const std::string& path, absl::string_view of,
                                           const char* name);
// Whether `name` is one that a plug-in may use.
bool IsPluginName(absl::string_view name);

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_SHARED_OBJECT_H_
