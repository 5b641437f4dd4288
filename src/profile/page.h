// What the pages of `profile` and `compare` have in common: one look, light and dark, and one colour a category.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// <!doctype html> to <main>, with the style inside; `title` is plain text.
std::string page_begin(std::string_view title);
std::string page_end();

// CSS class that gives a category (categories.h; or "host", "idle", "unaccounted") its fill: "cat-attention".
// Names that the table does not have share one grey.
std::string category_class(std::string_view category);

// The class of text that stands on that fill.
std::string category_text_class(std::string_view category);

// A legend entry: a swatch and the name.
std::string legend_item(std::string_view category);

// SVG text that lies at (x, y); `anchor` is start, middle or end. `text` is plain.
std::string svg_text(double x, double y, std::string_view text, std::string_view classes = "",
                     std::string_view anchor = "start");
// "12.3": a coordinate.
std::string svg_number(double value);

}  // namespace fathom
