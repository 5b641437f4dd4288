// The web page at "/": one self-contained document, no network but this server.
#pragma once

#include <string_view>

namespace fathom {

std::string_view web_page();

}  // namespace fathom
