// The child of a check, for tests (compression/plugin/check/codec_check.h).

#include "compression/plugin/check/check_child.h"

int main(int argc, char** argv) { eps::RunCodecCheckChild({argv + 1, argv + argc}); }
