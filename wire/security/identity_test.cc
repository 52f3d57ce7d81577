// Certificates of a real authority, and handshakes over real sockets.

#include "wire/security/identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/security/certificates.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kDays = 2;
constexpr std::chrono::seconds kPatience{300};

// Answers Hello.
class Greeter final : public v1::Control::Service {
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest*,
                     v1::HelloReply* reply) override {
    reply->set_server("greeter");
    return grpc::Status::OK;
  }
};

// An authority in a folder, and a server that it vouches for.
class IdentityTest : public testing::Test {
 protected:
  IdentityTest()
      : folder_(absl::StrCat(testing::TempDir(), "/identity-",
                             testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
                             getpid())) {
    fs::remove_all(folder_);
    EXPECT_TRUE(CreateAuthority(Path("ca"), kDays).ok());
  }
  ~IdentityTest() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    fs::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  absl::Status Issue(const std::string& name, v1::Role role, const std::string& host = "127.0.0.1",
                     const std::string& authority = "ca") {
    CertificateRequest request;
    request.role = role;
    request.trust_domain = "eps";
    request.hosts = {host};
    request.days = kDays;
    return IssueCertificate(Path(authority), request, Path(name));
  }
  absl::StatusOr<std::shared_ptr<const Identity>> Load(const std::string& name) {
    SecurityOptions options;
    options.dir = Path(name);
    return Identity::Load(options);
  }
  std::shared_ptr<const Identity> MakeIdentity(const std::string& name, v1::Role role,
                                               const std::string& host = "127.0.0.1",
                                               const std::string& authority = "ca") {
    EXPECT_TRUE(Issue(name, role, host, authority).ok());
    auto identity = Load(name);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *std::move(identity);
  }

  void Serve(const Identity& identity) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", identity.ForServers(), &port_);
    builder.RegisterService(&greeter_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  // Says Hello over a new connection.
  grpc::Status Greet(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::Control::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), credentials, arguments));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::HelloReply reply;
    return stub->Hello(&context, v1::HelloRequest(), &reply);
  }

  const std::string folder_;
  Greeter greeter_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

TEST_F(IdentityTest, AServerAndAWorkerTalk) {
  Serve(*MakeIdentity("server", v1::ROLE_SERVER));
  const auto worker = MakeIdentity("worker", v1::ROLE_WORKER);
  EXPECT_EQ(worker->role(), v1::ROLE_WORKER);
  const grpc::Status status = Greet(worker->ForClients());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(IdentityTest, PlaintextAndStrangersAreRefused) {
  Serve(*MakeIdentity("server", v1::ROLE_SERVER));
  EXPECT_EQ(Greet(grpc::InsecureChannelCredentials()).error_code(), grpc::StatusCode::UNAVAILABLE);
  // TLS without a certificate of the client.
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = *ReadTextFile(Path("ca/ca.crt"));
  EXPECT_EQ(Greet(grpc::SslCredentials(options)).error_code(), grpc::StatusCode::UNAVAILABLE);
  // A certificate of another authority; the client trusts the server.
  ASSERT_TRUE(CreateAuthority(Path("other"), kDays).ok());
  ASSERT_TRUE(Issue("stranger", v1::ROLE_WORKER, "127.0.0.1", "other").ok());
  fs::copy_file(Path("ca/ca.crt"), Path("stranger/ca.crt"), fs::copy_options::overwrite_existing);
  EXPECT_EQ(Greet((*Load("stranger"))->ForClients()).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(IdentityTest, ClientsCheckTheServer) {
  const auto worker = MakeIdentity("worker", v1::ROLE_WORKER);
  Serve(*MakeIdentity("server", v1::ROLE_SERVER, "elsewhere.example"));
  grpc::Status status = Greet(worker->ForClients());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->Shutdown();
  Serve(*MakeIdentity("impostor", v1::ROLE_WORKER));
  status = Greet(worker->ForClients());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << "its role is not server";
  server_->Shutdown();
  ASSERT_TRUE(CreateAuthority(Path("other"), kDays).ok());
  Serve(*MakeIdentity("stranger", v1::ROLE_SERVER, "127.0.0.1", "other"));
  status = Greet(worker->ForClients());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << "of another authority";
}

TEST_F(IdentityTest, NoVersionBefore13IsSpoken) {
  Serve(*MakeIdentity("server", v1::ROLE_SERVER));
  ASSERT_TRUE(Issue("worker", v1::ROLE_WORKER).ok());
  const auto connect = [this](const std::string& version) {
    const std::string command = absl::StrCat(
        "openssl s_client -connect 127.0.0.1:", port_, " -alpn h2 ", version, " -cert ",
        Path("worker/tls.crt"), " -key ", Path("worker/tls.key"), " -CAfile ", Path("ca/ca.crt"),
        " -verify_return_error </dev/null >", Path("said"), " 2>&1");
    return std::system(command.c_str());
  };
  EXPECT_EQ(connect("-tls1_3"), 0) << *ReadTextFile(Path("said"));
  EXPECT_NE(connect("-tls1_2"), 0) << *ReadTextFile(Path("said"));
}

TEST_F(IdentityTest, ReplacedFilesAreReadAgain) {
  Serve(*MakeIdentity("server", v1::ROLE_SERVER));
  const auto worker = MakeIdentity("worker", v1::ROLE_WORKER);
  ASSERT_TRUE(Greet(worker->ForClients()).ok());
  // Another authority takes over, on both sides.
  ASSERT_TRUE(CreateAuthority(Path("next"), kDays).ok());
  ASSERT_TRUE(Issue("server", v1::ROLE_SERVER, "127.0.0.1", "next").ok());
  ASSERT_TRUE(Issue("worker", v1::ROLE_WORKER, "127.0.0.1", "next").ok());
  // A client of the new authority alone shows that the server has read its files.
  const auto late = MakeIdentity("late", v1::ROLE_WORKER, "127.0.0.1", "next");
  const auto deadline = Clock::now() + 2 * kPatience;
  while (!Greet(late->ForClients()).ok() || !Greet(worker->ForClients()).ok()) {
    ASSERT_LT(Clock::now(), deadline);
  }
}

TEST_F(IdentityTest, TwoAuthoritiesAreAccepted) {
  ASSERT_TRUE(CreateAuthority(Path("next"), kDays).ok());
  ASSERT_TRUE(Issue("server", v1::ROLE_SERVER).ok());
  const std::string both = *ReadTextFile(Path("ca/ca.crt")) + *ReadTextFile(Path("next/ca.crt"));
  ASSERT_TRUE(ReplaceFile(Path("server/ca.crt"), both).ok());
  Serve(**Load("server"));
  ASSERT_TRUE(Issue("late", v1::ROLE_WORKER, "127.0.0.1", "next").ok());
  ASSERT_TRUE(ReplaceFile(Path("late/ca.crt"), both).ok());
  EXPECT_TRUE(Greet((*Load("late"))->ForClients()).ok()) << "of the second authority";
  EXPECT_TRUE(Greet(MakeIdentity("worker", v1::ROLE_WORKER)->ForClients()).ok());
}

TEST_F(IdentityTest, BadFilesAreNamed) {
  const auto expect = [this](absl::StatusCode code, const std::string& text) {
    const auto identity = Load("worker");
    EXPECT_EQ(identity.status().code(), code) << identity.status();
    EXPECT_TRUE(absl::StrContains(identity.status().message(), text)) << identity.status();
  };
  expect(absl::StatusCode::kNotFound, "worker/tls.key");
  ASSERT_TRUE(Issue("worker", v1::ROLE_WORKER).ok());
  ASSERT_TRUE(Issue("other", v1::ROLE_WORKER).ok());
  fs::copy_file(Path("other/tls.key"), Path("worker/tls.key"),
                fs::copy_options::overwrite_existing);
  expect(absl::StatusCode::kInvalidArgument, "tls.key is not the key of tls.crt");
  ASSERT_TRUE(ReplaceFile(Path("worker/tls.key"), "nonsense").ok());
  expect(absl::StatusCode::kInvalidArgument, "tls.key is no private key in PEM");
  ASSERT_TRUE(Issue("worker", v1::ROLE_WORKER).ok());
  ASSERT_TRUE(ReplaceFile(Path("worker/ca.crt"), "").ok());
  expect(absl::StatusCode::kInvalidArgument, "ca.crt is no certificate in PEM");
  ASSERT_TRUE(Issue("worker", v1::ROLE_WORKER).ok());
  SecurityOptions elsewhere;
  elsewhere.dir = Path("worker");
  elsewhere.trust_domain = "elsewhere";
  const auto identity = Identity::Load(elsewhere);
  EXPECT_EQ(identity.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(identity.status().message(), "trust domain elsewhere"))
      << identity.status();
}

TEST_F(IdentityTest, OnlyTheOwnerReadsKeys) {
  ASSERT_TRUE(Issue("worker", v1::ROLE_WORKER).ok());
  for (const char* key : {"ca/ca.key", "worker/tls.key"}) {
    struct stat info = {};
    ASSERT_EQ(stat(Path(key).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << key;
  }
}

TEST_F(IdentityTest, AuthoritiesAreNotReplaced) {
  const std::string before = *ReadTextFile(Path("ca/ca.key"));
  EXPECT_EQ(CreateAuthority(Path("ca"), kDays).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*ReadTextFile(Path("ca/ca.key")), before);
}

TEST_F(IdentityTest, HostsAreNamesOrAddresses) {
  for (const char* host : {"a.example", "*.pods.example", "10.0.0.1", "::1"}) {
    EXPECT_TRUE(Issue("server", v1::ROLE_SERVER, host).ok()) << host;
  }
  for (const char* host : {"", "a:1", "a,URI:spiffe://eps/eps/admin", "a b", "a\nb", "[::1]"}) {
    EXPECT_EQ(Issue("server", v1::ROLE_SERVER, host).code(), absl::StatusCode::kInvalidArgument)
        << host;
  }
}

}  // namespace
}  // namespace eps
