#ifndef EPS_COMPRESSION_PLUGIN_TESTING_OBJECTS_H_
#define EPS_COMPRESSION_PLUGIN_TESTING_OBJECTS_H_

#include <string>

namespace eps {

// The file of a codec that is good: that of the template.
inline constexpr char kGoodCodec[] = "compression/plugin/template/sign.so";

// Returns the file of a codec that does what `name` says (bad_codec.c).
inline std::string BadCodec(const std::string& name) {
  return "compression/plugin/testing/bad_" + name + ".so";
}

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_TESTING_OBJECTS_H_
