#ifndef EPS_SERVER_RPC_TESTING_HOSTILE_CLIENT_H_
#define EPS_SERVER_RPC_TESTING_HOSTILE_CLIENT_H_

// Requests that a stranger can send to a server. For tests only.

#include <string>

#include "absl/status/status.h"

namespace eps {

// Returns the gzip file of `mebibytes` MiB of zeros: about 1 KiB for each.
std::string GzipOfZeros(int mebibytes);

// Sends `message` as the request of a unary call, declared as compressed by gzip, and returns the
// status of the call. `method` is "/eps.v1.Control/Hello", for example.
absl::Status SendGzip(const std::string& address, const std::string& method,
                      const std::string& message);

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_HOSTILE_CLIENT_H_
