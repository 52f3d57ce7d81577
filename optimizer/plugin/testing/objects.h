#ifndef EPS_OPTIMIZER_PLUGIN_TESTING_OBJECTS_H_
#define EPS_OPTIMIZER_PLUGIN_TESTING_OBJECTS_H_

#include <string>

namespace eps {

// The file of an updater that is good: that of the template.
inline constexpr char kGoodUpdater[] = "optimizer/plugin/template/rmsprop.so";

// Returns the file of an updater that does what `name` says (bad_updater.c).
inline std::string BadUpdater(const std::string& name) {
  return "optimizer/plugin/testing/bad_" + name + ".so";
}

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_TESTING_OBJECTS_H_
