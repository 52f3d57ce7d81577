#include "eps_server/rpc/calls/unary_call.h"

#include <algorithm>

namespace eps {

std::string CleanRequestId(const std::string& request_id) {
  constexpr size_t kMaxLength = 64;
  std::string clean = request_id.substr(0, std::min(request_id.size(), kMaxLength));
  for (char& c : clean) {
    if (c < '!' || c > '~') c = '?';
  }
  return clean;
}

}  // namespace eps
