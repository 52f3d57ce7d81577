#ifndef EPS_BASE_MACHINE_HOST_NAME_H_
#define EPS_BASE_MACHINE_HOST_NAME_H_

#include <string>

namespace eps {

// Returns the name of this machine; "localhost" if it has none.
std::string HostName();

}  // namespace eps

#endif  // EPS_BASE_MACHINE_HOST_NAME_H_
