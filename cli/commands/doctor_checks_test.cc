#include "cli/commands/doctor_checks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::string Folder(const std::string& name) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  std::filesystem::create_directories(folder + "/memory");
  return folder;
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// A listener on a free loopback port.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 4), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~Listener() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

TEST(DoctorChecksTest, ComparesTheLimitWithAvailableMemory) {
  const struct {
    uint64_t available, limit;
    Level level;
    const char* text;
  } cases[] = {
      {12 * kGiB, 0, Level::kOk, "1,073,741,824 parameters"},
      {12 * kGiB, 6 * kGiB, Level::kOk, "536,870,912 parameters"},
      {12 * kGiB, 24 * kGiB, Level::kWarn, "lower it"},
      {kGiB, 0, Level::kWarn, "1.0 GiB available"},
      {12 * kGiB, kGiB, Level::kWarn, "servers.memory_limit 1.0 GiB"},
  };
  for (const auto& c : cases) {
    const Finding finding = CheckMemoryLimit(c.available, c.limit);
    EXPECT_EQ(finding.level, c.level) << finding.text;
    EXPECT_TRUE(absl::StrContains(finding.text, c.text)) << finding.text;
  }
}

TEST(DoctorChecksTest, WarnsOfFewOpenFiles) {
  EXPECT_EQ(CheckOpenFiles(1024, 4096).level, Level::kOk);
  EXPECT_EQ(CheckOpenFiles(UINT64_MAX, UINT64_MAX).level, Level::kOk);
  const Finding few = CheckOpenFiles(256, 4096);
  EXPECT_EQ(few.level, Level::kWarn);
  EXPECT_TRUE(absl::StrContains(few.text, "ulimit -n 4096")) << few.text;
  EXPECT_TRUE(absl::StrContains(CheckOpenFiles(256, 256).text, "hard limit"));
}

TEST(DoctorChecksTest, TriesTheAddressOfAServer) {
  EXPECT_EQ(CheckListen("127.0.0.1:0").level, Level::kOk);
  const Listener taken;
  const Finding busy = CheckListen(taken.address());
  EXPECT_EQ(busy.level, Level::kFail);
  EXPECT_TRUE(absl::StrContains(busy.text, "in use")) << busy.text;
  EXPECT_EQ(CheckListen("203.0.113.1:0").level, Level::kFail)
      << "an address reserved for documentation";
  EXPECT_EQ(CheckListen("nonsense").level, Level::kFail);
}

TEST(DoctorChecksTest, ConnectsToTheNamedServers) {
  constexpr std::chrono::seconds kPatience{10};
  Listener server;
  EXPECT_EQ(CheckReach(server.address(), kPatience).level, Level::kOk);
  server.Close();
  const Finding gone = CheckReach(server.address(), kPatience);
  EXPECT_EQ(gone.level, Level::kFail);
  EXPECT_TRUE(absl::StrContains(gone.text, server.address())) << gone.text;
  EXPECT_TRUE(absl::StrContains(gone.text, "refused")) << gone.text;
  EXPECT_EQ(CheckReach("127.0.0.1:0", kPatience).level, Level::kFail);
  EXPECT_EQ(CheckReach("no port", kPatience).level, Level::kFail);
}

TEST(DoctorChecksTest, SaysWhyAGpuIsNotUsed) {
  EXPECT_EQ(CheckGpu(0, "not used: no libtorch_cuda.so").level, Level::kOk);
  const Finding unused = CheckGpu(2, "not used: libtorch_cuda.so: cannot open");
  EXPECT_EQ(unused.level, Level::kWarn);
  EXPECT_TRUE(absl::StrContains(unused.text, "2 devices")) << unused.text;
  EXPECT_TRUE(absl::StrContains(unused.text, "libtorch_cuda.so: cannot open")) << unused.text;
  EXPECT_EQ(CheckGpu(1, "").level, Level::kWarn);
  EXPECT_EQ(CheckGpu(2, "0 devices").level, Level::kWarn);
  EXPECT_EQ(CheckGpu(2, "2 devices").level, Level::kOk);
  const std::string folder = Folder("dev");
  EXPECT_EQ(CountGpus(folder), 0);
  for (const char* name : {"nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "sda0"}) {
    Write(folder + "/" + name, "");
  }
  EXPECT_EQ(CountGpus(folder), 2);
  EXPECT_EQ(CountGpus(folder + "/nowhere"), 0);
}

}  // namespace
}  // namespace eps
