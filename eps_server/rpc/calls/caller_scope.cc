#include "eps_server/rpc/calls/caller_scope.h"

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "wire/security/identity.h"
#include "wire/security/job_token.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr char kUriKey[] = "peer_spiffe_id";

}  // namespace

absl::string_view UriOfCaller(const grpc::AuthContext& peer) {
  const std::vector<grpc::string_ref> uris = peer.FindPropertyValues(kUriKey);
  return uris.size() == 1 ? absl::string_view(uris[0].data(), uris[0].size()) : "";
}

CallerScope ScopeOf(const grpc::CallbackServerContext& context) {
  CallerScope scope;
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  const absl::string_view uri = peer == nullptr ? "" : UriOfCaller(*peer);
  const Identity* const identity = ProcessIdentityOrNull();
  if (uri.empty() || identity == nullptr) return scope;
  const absl::StatusOr<PeerName> name = PeerOfUri(uri, identity->trust_domain());
  if (name.ok()) scope.name = name->job;
  const auto found = context.client_metadata().find(kTokenMetadata);
  if (found == context.client_metadata().end()) return scope;
  const absl::StatusOr<JobToken> token = ParseToken({found->second.data(), found->second.size()});
  if (token.ok()) scope.uid = token->uid;
  return scope;
}

}  // namespace eps
