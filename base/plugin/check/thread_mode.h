#ifndef EPS_BASE_PLUGIN_CHECK_THREAD_MODE_H_
#define EPS_BASE_PLUGIN_CHECK_THREAD_MODE_H_

#include <functional>
#include <string>

namespace eps {

// Calls a function of a plug-in with denormals flushed, in a floating-point mode and with a mask of
// signals (all blocked, or none) that earlier calls cannot have changed. Returns how the function
// `name` changes one of them, or an empty text. `call` must do nothing else.
std::string FindModeChange(const std::string& name, bool blocked,
                           const std::function<void()>& call);

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_THREAD_MODE_H_
