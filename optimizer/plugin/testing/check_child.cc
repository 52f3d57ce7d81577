// The child of a check, for tests (optimizer/plugin/check/plugin_check.h).

#include "optimizer/plugin/check/check_child.h"

int main(int argc, char** argv) { eps::RunPluginCheckChild({argv + 1, argv + argc}); }
