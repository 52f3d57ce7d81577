#include "wire/held_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr size_t kHeld = 16 << 10;
constexpr size_t kMost = 4 * kHeld;  // what the kernel may hold
constexpr size_t kRead = 2 << 20;
constexpr int kPatienceMs = 20'000;

// A held socket, and a peer that sends as fast as the socket is read.
class HeldSocketTest : public testing::Test {
 protected:
  HeldSocketTest() {
    const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    LimitUnread(listener.get(), kHeld);
    sockaddr_in where = {};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(where);
    auto* const address = reinterpret_cast<sockaddr*>(&where);
    EXPECT_EQ(bind(listener.get(), address, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), address, &size), 0);
    EXPECT_EQ(connect(peer_.get(), address, size), 0);
    socket_ = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(write(socket_.get(), "hello", kGreeting), static_cast<ssize_t>(kGreeting));
    EXPECT_TRUE(HoldBack(socket_.get(), kHeld));
    sender_ = std::thread([this] {
      const std::string bytes(256 << 10, 'x');
      while (send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) {
      }
    });
  }

  ~HeldSocketTest() override {
    shutdown(peer_.get(), SHUT_RDWR);
    sender_.join();
  }

  // Reads kRead bytes and returns the most that waited at a time.
  size_t ReadMuch() {
    std::string bytes(256 << 10, '\0');
    size_t most = 0;
    for (size_t read = 0; read < kRead;) {
      pollfd readable = {socket_.get(), POLLIN, 0};
      EXPECT_EQ(poll(&readable, 1, kPatienceMs), 1) << "nothing more arrives";
      int waiting = 0;
      EXPECT_EQ(ioctl(socket_.get(), FIONREAD, &waiting), 0);
      most = std::max(most, static_cast<size_t>(waiting));
      const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) break;
      read += static_cast<size_t>(got);
    }
    return most;
  }

  static constexpr size_t kGreeting = 5;
  Descriptor peer_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  Descriptor socket_;
  std::thread sender_;
};

TEST_F(HeldSocketTest, HoldsLittleHoweverMuchIsRead) { EXPECT_LT(ReadMuch(), kMost); }

TEST_F(HeldSocketTest, ReportsAReadWhileMoreArrives) {
  ReadMuch();
  std::atomic<bool> ends{false};
  std::thread owner([&] {
    while (!ends) ReadMuch();
  });
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(UseOf(socket_.get(), kGreeting), SocketUse::kReadFirst);
  }
  ends = true;
  owner.join();
}

TEST_F(HeldSocketTest, HoldsMuchAfterwards) {
  ReadMuch();
  LetIn(socket_.get());
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  size_t most = 0;
  while (most < kMost && std::chrono::steady_clock::now() < give_up) most = ReadMuch();
  EXPECT_GE(most, kMost);
}

}  // namespace
}  // namespace eps
