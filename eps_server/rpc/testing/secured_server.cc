#include "eps_server/rpc/testing/secured_server.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"
#include "wire/security/certificates.h"
#include "wire/security/peer_role.h"

namespace eps {

SecuredServer::SecuredServer(bool tokens_required, uint64_t connection_age_ms)
    : folder_(absl::StrCat(testing::TempDir(), "/secured-server-", getpid())) {
  if (ProcessIdentityOrNull() == nullptr) {
    std::filesystem::remove_all(folder_);
    EPS_CHECK(CreateAuthority(folder_ + "/ca", 1).ok());
    SetProcessIdentity(MakeIdentity(v1::ROLE_SERVER, "", ""));
  }
  const std::string line = *NewTokenKeyLine();
  key_ = ParseTokenKeys(line)->front();
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.threads = 2;
  options.memory_limit_bytes = uint64_t{1} << 28;
  options.tokens = {keys_file(), tokens_required};
  options.connection_age_ms = connection_age_ms;
  std::ofstream(options.tokens.keys_file) << line;
  auto server = Server::Start(options);
  EPS_CHECK_MSG(server.ok(), server.status().ToString());
  server_ = *std::move(server);
}

std::shared_ptr<const Identity> SecuredServer::MakeIdentity(v1::Role role, const std::string& job,
                                                            const std::string& token) {
  CertificateRequest request;
  request.role = role;
  request.job = job;
  request.trust_domain = "eps";
  request.hosts = {"127.0.0.1"};
  request.days = 1;
  static int identities = 0;  // each has a folder, because files are read again
  SecurityOptions options;
  options.dir = absl::StrCat(folder_, "/", ++identities);
  options.on_loopback = true;
  EPS_CHECK(IssueCertificate(folder_ + "/ca", request, options.dir).ok());
  if (!token.empty()) {
    options.token = options.dir + "/token";
    std::ofstream(options.token) << token;
  }
  auto identity = Identity::Load(options);
  EPS_CHECK_MSG(identity.ok(), identity.status().ToString());
  return *std::move(identity);
}

std::shared_ptr<grpc::Channel> SecuredServer::Connect(v1::Role role, const std::string& job,
                                                      const std::string& token) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address(), MakeIdentity(role, job, token)->ForClients(),
                                   arguments);
}

std::string SecuredServer::TokenOf(v1::Role role, uint64_t uid) const {
  return SignToken({uid, role, std::time(nullptr) + 60}, key_);
}

absl::Status CallRpc(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                     const std::string& request, google::protobuf::MessageLite* reply,
                     std::chrono::milliseconds timeout) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, path, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  wait();
  const grpc::Slice message(request);
  if (call->Write(grpc::ByteBuffer(&message, 1), nullptr); wait()) {
    call->WritesDone(nullptr);
    wait();
  }
  bool received = false;
  for (;;) {
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    if (!wait()) break;
    if (received || reply == nullptr) continue;
    received = true;
    grpc::Slice bytes;
    EXPECT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
    EXPECT_TRUE(reply->ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())));
    context.TryCancel();  // a watch would go on
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  return received ? absl::OkStatus() : FromGrpc(status, "");
}

}  // namespace eps
