#ifndef EPS_WIRE_HTTP_TESTING_HTTP_GET_H_
#define EPS_WIRE_HTTP_TESTING_HTTP_GET_H_

#include <string>

#include "absl/strings/string_view.h"

namespace eps {

// Sends `request` to "HOST:PORT" of this machine and returns all bytes until the server closes the
// connection.
std::string Exchange(const std::string& address, absl::string_view request);

// Returns the answer to GET `path`, headers and body.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace eps

#endif  // EPS_WIRE_HTTP_TESTING_HTTP_GET_H_
