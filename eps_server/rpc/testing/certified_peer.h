#ifndef EPS_SERVER_RPC_TESTING_CERTIFIED_PEER_H_
#define EPS_SERVER_RPC_TESTING_CERTIFIED_PEER_H_

#include <string>
#include <utility>
#include <vector>

#include "grpcpp/security/auth_context.h"

namespace eps {

// The properties, as gRPC has them, of a connection whose peer has a certificate with this SAN URI.
// There is no connection. For tests and benchmarks only.
class CertifiedPeer final : public grpc::AuthContext {
 public:
  explicit CertifiedPeer(std::string uri) : uri_(std::move(uri)) {}

  bool IsPeerAuthenticated() const override { return true; }
  std::vector<grpc::string_ref> GetPeerIdentity() const override { return {uri_}; }
  std::string GetPeerIdentityPropertyName() const override { return kProperty; }
  std::vector<grpc::string_ref> FindPropertyValues(const std::string& name) const override {
    if (name != kProperty) return {};
    return {uri_};
  }
  grpc::AuthPropertyIterator begin() const override { return NoProperty(); }
  grpc::AuthPropertyIterator end() const override { return NoProperty(); }
  void AddProperty(const std::string&, const grpc::string_ref&) override {}
  bool SetPeerIdentityPropertyName(const std::string&) override { return false; }

 private:
  static constexpr char kProperty[] = "peer_spiffe_id";
  // The end of a list of properties.
  class NoProperty final : public grpc::AuthPropertyIterator {};

  const std::string uri_;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_CERTIFIED_PEER_H_
