#ifndef EPS_BASE_CONFIG_SECURITY_KEYS_H_
#define EPS_BASE_CONFIG_SECURITY_KEYS_H_

// The keys of the section `security` (docs/guides/security.md).

#include "base/config/config.h"
#include "base/config/text_rules.h"
#include "base/job/key_rules.h"

namespace eps {

template <class V>
void SecurityKeys(V* v, SecurityConfig* s) {
  v->Key("security.dir", &s->dir, AnyValue(),
         "Folder with this process's certificate: tls.key, tls.crt and ca.crt, as eps certs issue "
         "writes them; files that change are read again. With it, all connections but those over "
         "loopback use mutual TLS 1.3; empty: plaintext.");
  v->Key("security.tls", &s->tls, AnyValue(),
         "auto: connections over loopback stay plaintext; always: they use TLS, too.");
  v->Key("security.trust_domain", &s->trust_domain, AnyValue(),
         "Trust domain of the roles in certificates: spiffe://TRUST_DOMAIN/eps/ROLE.");
  v->Key("security.token", &s->token, AnyValue(),
         "File with a token (eps certs token), which limits this process's certificate to one job "
         "of the board; a file that changes is read again. Empty: none.");
  v->Key("security.token_keys", &s->token_keys, AnyValue(),
         "Of servers: file with the key that verifies tokens (eps certs token-key), or two while "
         "one is replaced; a file that changes is read again. Empty: calls with a token are "
         "refused.");
  v->Key("security.tokens", &s->tokens, AnyValue(),
         "Of servers: optional, or required: every caller but other servers needs a token.");
  v->Key("security.connection_age", &s->connection_age_ms, DurationText(),
         "Of servers with TLS: about how long a connection may last before its peer has to connect "
         "again, with a certificate that is valid then; 0 sets no limit.");
}

}  // namespace eps

#endif  // EPS_BASE_CONFIG_SECURITY_KEYS_H_
