#include "cli/launch/reserved_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"

namespace eps {
namespace {

sockaddr_in AddressOf(const ReservedPort& port) {
  uint32_t number = 0;
  EXPECT_TRUE(absl::SimpleAtoi(absl::string_view(port.address()).substr(10), &number));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(number));
  return address;
}

// Returns a socket bound to the port, with SO_REUSEADDR as a server has it, or without.
Descriptor Bound(const ReservedPort& port, bool reuse) {
  Descriptor fd(socket(AF_INET, SOCK_STREAM, 0));
  const int on = reuse ? 1 : 0;
  EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  const sockaddr_in address = AddressOf(port);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Descriptor();
  }
  return fd;
}

TEST(ReservedPortTest, ExcludesOtherSockets) {
  const absl::StatusOr<ReservedPort> port = ReservedPort::Take();
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_FALSE(Bound(*port, /*reuse=*/false).ok());
}

TEST(ReservedPortTest, AServerCanListenAgain) {
  const absl::StatusOr<ReservedPort> port = ReservedPort::Take();
  ASSERT_TRUE(port.ok()) << port.status();
  const sockaddr_in address = AddressOf(*port);
  for (int start = 0; start < 3; ++start) {
    const Descriptor server = Bound(*port, /*reuse=*/true);
    ASSERT_TRUE(server.ok()) << "start " << start;
    ASSERT_EQ(listen(server.get(), 1), 0) << "start " << start;
    // Connect, so that the port has a used connection when the server ends.
    const Descriptor client(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    const Descriptor accepted(accept(server.get(), nullptr, nullptr));
    ASSERT_TRUE(accepted.ok());
    EXPECT_FALSE(Bound(*port, /*reuse=*/true).ok()) << "one server at a time";
  }
}

TEST(ReservedPortTest, IsFreeWhenTheObjectIsGone) {
  std::optional<ReservedPort> moved;
  {
    absl::StatusOr<ReservedPort> port = ReservedPort::Take();
    ASSERT_TRUE(port.ok()) << port.status();
    moved = *std::move(port);
  }
  EXPECT_FALSE(Bound(*moved, /*reuse=*/false).ok()) << "a moved object no longer reserves the port";
  const absl::StatusOr<ReservedPort> other = ReservedPort::Take();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(other->address(), moved->address());
}

}  // namespace
}  // namespace eps
