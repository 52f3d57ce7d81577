#include "wire/security/peer_role.h"

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(PeerRole, ReadsTheUriThatItWrites) {
  for (const v1::Role role : {v1::ROLE_WORKER, v1::ROLE_SERVER, v1::ROLE_DRIVER, v1::ROLE_SCHEDULER,
                              v1::ROLE_ADMIN, v1::ROLE_VIEWER}) {
    const auto read = PeerOfUri(UriOfPeer({role, ""}, "example.org"), "example.org");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, (PeerName{role, ""}));
    EXPECT_EQ(*RoleOfName(RoleName(role)), role);
  }
  EXPECT_EQ(UriOfPeer({v1::ROLE_WORKER, ""}, "eps"), "spiffe://eps/eps/worker");
}

TEST(PeerRole, AUriMayNameAJob) {
  const PeerName worker = {v1::ROLE_WORKER, "gpt2-1.run_7"};
  EXPECT_EQ(UriOfPeer(worker, "eps"), "spiffe://eps/eps/worker/gpt2-1.run_7");
  EXPECT_EQ(*PeerOfUri("spiffe://eps/eps/worker/gpt2-1.run_7", "eps"), worker);
  // A server serves all jobs.
  EXPECT_EQ(PeerOfUri("spiffe://eps/eps/server/a", "eps").status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(PeerRole, OtherUrisHaveNoRole) {
  for (const char* uri :
       {"", "spiffe://eps/eps/", "spiffe://eps/eps/any", "spiffe://eps/eps/unspecified",
        "spiffe://eps/eps/worker/", "spiffe://eps/eps/worker/a/b", "spiffe://eps/eps/worker/a%20b",
        "spiffe://eps/eps/Worker", "spiffe://other/eps/worker", "spiffe://eps/other/worker",
        "https://eps/eps/worker", "spiffe://eps/eps/worker ", "xspiffe://eps/eps/worker"}) {
    const auto role = PeerOfUri(uri, "eps");
    EXPECT_EQ(role.status().code(), absl::StatusCode::kPermissionDenied) << uri;
    EXPECT_TRUE(absl::StrContains(role.status().message(), "spiffe://eps/eps/worker")) << uri;
  }
}

TEST(PeerRole, UnknownNamesListTheRoles) {
  const auto role = RoleOfName("any");
  EXPECT_EQ(role.status().message(),
            "\"any\" is no role; the roles are worker, server, driver, scheduler, admin, viewer");
}

}  // namespace
}  // namespace eps
