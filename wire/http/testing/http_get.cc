#include "wire/http/testing/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "gtest/gtest.h"

namespace eps {

std::string Exchange(const std::string& address, absl::string_view request) {
  const Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  // The server may end the connection in the middle of a request that it refuses.
  (void)send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd.get(), buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  return answer;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  return Exchange(address, absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\n\r\n"));
}

}  // namespace eps
