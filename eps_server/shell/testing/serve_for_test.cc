// usage: serve_for_test [LISTEN [PEER...]]
// A server in a process of its own, for tests that connect to it from outside. PEER is an entry of
// servers.peers.

#include "eps_server/server.h"

int main(int argc, char** argv) {
  eps::ServerOptions options;
  if (argc > 1) options.listen = argv[1];
  for (int i = 2; i < argc; ++i) options.peers.emplace_back(argv[i]);
  options.threads = 2;
  options.memory_limit_bytes = uint64_t{1} << 30;
  return eps::RunServer(options, nullptr);
}
