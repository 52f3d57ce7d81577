#ifndef EPS_CLI_VERSION_H_
#define EPS_CLI_VERSION_H_

namespace eps {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace eps

#endif  // EPS_CLI_VERSION_H_
