#ifndef EPS_SERVER_RPC_CALLS_CALLER_SCOPE_H_
#define EPS_SERVER_RPC_CALLS_CALLER_SCOPE_H_

// Which jobs the caller of an RPC may reach.

#include "absl/strings/string_view.h"
#include "base/job/drivers/job_scope.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"

namespace eps {

// Returns the only SAN URI of a caller's certificate, a text that lives as long as the connection;
// empty if it has none, or several, and without TLS.
absl::string_view UriOfCaller(const grpc::AuthContext& peer);

// Returns what the certificate and the token of a call limit it to; all jobs without TLS. The guard
// (eps_server/rpc/role_guard.h) has verified both before a handler runs.
CallerScope ScopeOf(const grpc::CallbackServerContext& context);

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_CALLER_SCOPE_H_
