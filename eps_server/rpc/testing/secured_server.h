#ifndef EPS_SERVER_RPC_TESTING_SECURED_SERVER_H_
#define EPS_SERVER_RPC_TESTING_SECURED_SERVER_H_

// A server with TLS, and clients with certificates and tokens. For tests only.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "eps/v1/access.pb.h"
#include "eps_server/server.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/channel.h"
#include "wire/security/identity.h"
#include "wire/security/job_token.h"

namespace eps {

// The files are in a folder of the process, below the test's temporary one. The first object
// creates the authority and gives the process the identity of a server. Thread-compatible.
class SecuredServer {
 public:
  static constexpr std::chrono::seconds kTimeout{300};

  // Starts the server on a free port of loopback, or ends the test. It verifies tokens.
  explicit SecuredServer(bool tokens_required = false, uint64_t connection_age_ms = 0);

  const std::string& address() const { return server_->address(); }
  const TokenKey& token_key() const { return key_; }
  // The file with the key.
  std::string keys_file() const { return folder_ + "/keys"; }

  // Returns a new connection of a process with a certificate of that role and job. `token` is the
  // text of its token; empty: it has none.
  std::shared_ptr<grpc::Channel> Connect(v1::Role role, const std::string& job = "",
                                         const std::string& token = "");
  // Returns a token of this server that is valid for a minute.
  std::string TokenOf(v1::Role role, uint64_t uid) const;

 private:
  std::shared_ptr<const Identity> MakeIdentity(v1::Role role, const std::string& job,
                                               const std::string& token);

  const std::string folder_;
  TokenKey key_;
  std::unique_ptr<Server> server_;
};

// Calls the RPC at `path` with one message, whether it streams or not, and returns its status. If
// `reply` is not null, it gets the first reply, which is
// then the end of the call and a success.
absl::Status CallRpc(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                     const std::string& request = "",
                     google::protobuf::MessageLite* reply = nullptr,
                     std::chrono::milliseconds timeout = SecuredServer::kTimeout);

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_SECURED_SERVER_H_
