// The version of these headers. twell_version() (twell/c.h) is that of the library.
#pragma once

#define TWELL_VERSION_MAJOR 0
#define TWELL_VERSION_MINOR 1
#define TWELL_VERSION_PATCH 0
#define TWELL_VERSION "0.1.0"
