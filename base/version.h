#ifndef EPS_BASE_VERSION_H_
#define EPS_BASE_VERSION_H_

namespace eps {

// The version of the release, as `eps --version` prints it.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace eps

#endif  // EPS_BASE_VERSION_H_
