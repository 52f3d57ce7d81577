// Compares the chunk stream between a server process and a worker process with other uses of the
// same loopback connection: a bare TCP socket, and the same payload as protobuf messages over gRPC,
// in a stream and call by call, between two processes with default settings (and, for comparison,
// with the product's settings), and with the chunk stream over mutual TLS. Codecs and checksums of
// chunks are left out. Rounds run one transport after the other; a figure is the median of the
// rounds' ratios, without the first round. After each fetch, untimed, every byte is compared with
// what was sent.
//
// Usage: transport_bench [MiB per fetch] [rounds]. Exits with 1 if a fetch fails, a byte differs or
// a goal is missed, with 64 after a wrong call.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "bench/peers/timing.h"
#include "bench/peers/transport_client.h"
#include "bench/peers/transport_server.h"
#include "wire/security/certificates.h"
#include "wire/security/identity.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr size_t kMebi = size_t{1} << 20;
constexpr size_t kChunkBytes = 4 * kMebi * sizeof(float);  // the product's largest chunk
constexpr int kGigabyte = 1'000'000'000;

// A comparison of the chunk stream with another way, and the least ratio that reaches its goal; 0
// if there is no goal.
struct Goal {
  size_t peer;
  const char* text;
  double ratio;
  bool inverse = false;  // the throughput of the other way / that of the chunk stream
};

// Returns the CPU seconds of a process.
double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec time = {};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the transports that a process with these settings measures, in this order.
std::vector<std::string> WayNames(Settings settings) {
  if (settings == Settings::kPlain)
    return {"protobuf, one stream", "protobuf, a call for each slice"};
  return {"chunk stream", "TCP socket", "TCP socket, received in place",
          "protobuf stream, our settings"};
}

// The cost of one fetch, with CPU seconds of the fetching process and of the server.
struct Cost {
  bool good = false;
  double seconds = 0;
  double worker_cpu = 0;
  double server_cpu = 0;
};

// Runs a function of this program in a separate process, which ends with this one. Construct it
// before this process has threads. `run` receives two pipes: one to read commands from and one to
// write replies to.
class Child {
 public:
  explicit Child(const std::function<int(int in, int out)>& run) {
    int commands[2], replies[2];
    if (pipe2(commands, O_CLOEXEC) != 0 || pipe2(replies, O_CLOEXEC) != 0) std::exit(71);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(commands[1]);
      close(replies[0]);
      std::_Exit(run(commands[0], replies[1]));
    }
    close(commands[0]);
    close(replies[1]);
    in_ = replies[0];
    out_ = commands[1];
  }
  ~Child() {
    close(out_);
    close(in_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  template <class T>
  bool Send(const T& value) {
    return write(out_, &value, sizeof(value)) == sizeof(value);
  }
  template <class T>
  bool Receive(T* value) {
    return read(in_, value, sizeof(*value)) == sizeof(*value);
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

// Gives this process the certificate in a folder. An empty folder is plaintext.
bool UseCertificate(const std::string& folder) {
  if (folder.empty()) return true;
  SecurityOptions security;
  security.dir = folder;
  const absl::Status status = UseSecurity(std::move(security), "always");
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok();
}

// Writes the ports and serves until the command pipe is closed.
int Serve(const TransportLoad& load, Settings settings, int in, int out) {
  const auto server = TransportServer::Start(load, settings);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", std::string(server.status().message()).c_str());
    return 70;
  }
  const TransportServer::Ports ports = (*server)->ports();
  if (write(out, &ports, sizeof(ports)) != sizeof(ports)) return 70;
  char ignored;
  while (read(in, &ignored, 1) > 0) {
  }
  return 0;
}

using Clients = std::vector<std::unique_ptr<TransportClient>>;

// Times one fetch and then compares the bytes.
Cost Measure(const TransportLoad& load, pid_t server, const PageArray& memory,
             const std::string& name, TransportClient* client) {
  std::memset(memory.data(), 0, load.total_bytes);
  auto* out = static_cast<uint8_t*>(memory.data());
  Cost cost;
  const double server_cpu = CpuSeconds(server);
  const double worker_cpu = CpuSeconds(getpid());
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = client->Fetch(out);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  cost.seconds = seconds.count();
  cost.worker_cpu = CpuSeconds(getpid()) - worker_cpu;
  cost.server_cpu = CpuSeconds(server) - server_cpu;
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), std::string(status.message()).c_str());
    return cost;
  }
  const size_t difference = FirstDifference(out, load.total_bytes);
  cost.good = difference == load.total_bytes;
  if (!cost.good) {
    std::fprintf(stderr, "%s: byte %zu of %zu is not what was sent\n", name.c_str(), difference,
                 load.total_bytes);
  }
  return cost;
}

// Reads transport numbers, fetches over each and writes the cost.
int Work(const TransportLoad& load, Settings settings, const TransportServer::Ports& ports,
         pid_t server, int in, int out) {
  Clients clients;
  if (settings == Settings::kPlain) {
    clients.push_back(NewProtobufStreamClient(load, ports.protobuf, settings));
    clients.push_back(NewUnaryClient(load, ports.protobuf, settings));
  } else {
    clients.push_back(NewChunkStreamClient(load, ports.chunks));
    for (const bool in_place : {false, true}) {
      auto tcp = NewTcpClient(load, ports.tcp, in_place);
      if (!tcp.ok()) return 70;
      clients.push_back(std::move(*tcp));
    }
    clients.push_back(NewProtobufStreamClient(load, ports.protobuf, settings));
  }
  const std::vector<std::string> names = WayNames(settings);
  const PageArray memory(load.total_bytes);
  size_t way = 0;
  while (read(in, &way, sizeof(way)) == sizeof(way)) {
    const Cost cost = Measure(load, server, memory, names[way], clients[way].get());
    if (write(out, &cost, sizeof(cost)) != sizeof(cost)) break;
  }
  return 0;
}

// A server process and a worker process with the same settings.
class Pair {
 public:
  // `certificates` holds those of both roles; empty: plaintext.
  Pair(const TransportLoad& load, Settings settings, const std::string& certificates = "")
      : server_([=](int in, int out) {
          if (!UseCertificate(certificates.empty() ? "" : certificates + "/server")) return 70;
          return Serve(load, settings, in, out);
        }) {
    TransportServer::Ports ports;
    if (!server_.Receive(&ports)) return;
    worker_ = std::make_unique<Child>([=](int in, int out) {
      if (!UseCertificate(certificates.empty() ? "" : certificates + "/worker")) return 70;
      return Work(load, settings, ports, server_.pid(), in, out);
    });
  }

  // Returns a cost that is not `good` if the processes have ended.
  Cost Fetch(size_t way) {
    Cost cost;
    if (worker_ == nullptr || !worker_->Send(way) || !worker_->Receive(&cost)) return Cost();
    return cost;
  }

 private:
  Child server_;
  std::unique_ptr<Child> worker_;
};

// A transport, the processes that measure it, and the cost of each round.
struct Way {
  std::string name;
  Pair* pair;
  size_t number;
  std::vector<Cost> costs;
};

Spread SpreadOfCosts(const Way& way, const std::function<double(const Cost&)>& figure) {
  std::vector<double> values;
  for (const Cost& cost : way.costs) values.push_back(figure(cost));
  return SpreadOf(std::move(values));
}

bool Report(const TransportLoad& load, const std::vector<Way>& ways,
            const std::vector<Goal>& goals) {
  const double gb = static_cast<double>(load.total_bytes) / kGigabyte;
  std::printf("%-34s %-22s CPU s/GB: both  worker  server\n", "", "GB/s");
  for (const Way& way : ways) {
    const Spread rate = SpreadOfCosts(way, [&](const Cost& c) { return gb / c.seconds; });
    const Spread worker = SpreadOfCosts(way, [&](const Cost& c) { return c.worker_cpu / gb; });
    const Spread server = SpreadOfCosts(way, [&](const Cost& c) { return c.server_cpu / gb; });
    const Spread both =
        SpreadOfCosts(way, [&](const Cost& c) { return (c.worker_cpu + c.server_cpu) / gb; });
    std::printf("%-34s %5.2f [%.2f..%.2f]  %14.3f %7.3f %7.3f\n", way.name.c_str(), rate.median,
                rate.low, rate.high, both.median, worker.median, server.median);
  }
  bool reached = true;
  for (const Goal& goal : goals) {
    std::vector<double> ratios;
    for (size_t i = 0; i < ways[0].costs.size(); ++i) {
      const double ratio = ways[goal.peer].costs[i].seconds / ways[0].costs[i].seconds;
      ratios.push_back(goal.inverse ? 1 / ratio : ratio);
    }
    if (!ReportRatio(goal.text, ratios, goal.ratio)) reached = false;
  }
  return reached;
}

// Makes a certificate for each process.
absl::Status MakeCertificates(const std::string& folder) {
  EPS_RETURN_IF_ERROR(CreateAuthority(folder + "/ca", /*days=*/1));
  for (const v1::Role role : {v1::ROLE_SERVER, v1::ROLE_WORKER}) {
    const CertificateRequest request = {role, /*job=*/"", "eps", {"127.0.0.1"}, /*days=*/1};
    EPS_RETURN_IF_ERROR(
        IssueCertificate(folder + "/ca", request, absl::StrCat(folder, "/", RoleName(role))));
  }
  return absl::OkStatus();
}

int Run(const TransportLoad& load, int rounds) {
  const absl::StatusOr<std::string> folder = MakeTemporaryFolder("transport");
  const absl::Status made = folder.ok() ? MakeCertificates(*folder) : folder.status();
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", std::string(made.message()).c_str());
    return 1;
  }
  const ScratchFolder certificates = {*folder};
  Pair product(load, Settings::kProduct);
  Pair plain(load, Settings::kPlain);
  Pair secure(load, Settings::kProduct, certificates.path);
  std::vector<Way> ways;
  for (Pair* pair : {&product, &plain}) {
    const auto names = WayNames(pair == &product ? Settings::kProduct : Settings::kPlain);
    for (size_t i = 0; i < names.size(); ++i) ways.push_back({names[i], pair, i, {}});
  }
  ways.push_back({"chunk stream, mutual TLS", &secure, 0, {}});
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      // Each round begins with another transport, so that none always runs after the same one.
      Way& way = ways[(i + static_cast<size_t>(round)) % ways.size()];
      const Cost cost = way.pair->Fetch(way.number);
      if (!cost.good) return 1;
      if (round > 0) way.costs.push_back(cost);
    }
  }
  const std::vector<Goal> goals = {
      {1, "throughput / TCP socket", 0.95},
      {4, "throughput / protobuf stream", 1.3},
      {5, "throughput / protobuf calls", 2.0},
      {2, "throughput / TCP socket, in place", 0},
      {3, "throughput / protobuf stream, our settings", 0},
      {6, "throughput with mutual TLS / without it", 0.70, /*inverse=*/true},
  };
  return Report(load, ways, goals) ? 0 : 1;
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 512;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (mebi < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: transport_bench [MiB per fetch] [rounds]\n");
    return 64;
  }
  TransportLoad load;
  load.total_bytes = static_cast<size_t>(mebi) * kMebi;
  load.chunk_bytes = kChunkBytes;
  std::printf("machine: %s, %u threads; %ld MiB in chunks of %zu MiB, slices of 2 MiB; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), mebi, kChunkBytes / kMebi,
              rounds);
  std::fflush(stdout);
  return Run(load, rounds);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
