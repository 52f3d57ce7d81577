#ifndef EPS_BASE_PLUGIN_NAMES_H_
#define EPS_BASE_PLUGIN_NAMES_H_

#include "absl/strings/string_view.h"

namespace eps {

// The value of quantization.gradients that chooses the codec in quantization.plugin. The complete
// name of that codec in a job begins with it.
inline constexpr char kPluginCodec[] = "plugin";

// Whether `name` is one that a plug-in may use: 1 to 63 of a-z, 0-9 and _, beginning with a letter.
bool IsPluginName(absl::string_view name);

// Whether the text is a SHA-256 digest: 64 digits of lower-case hexadecimal.
bool IsSha256(absl::string_view text);

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_NAMES_H_
