#include "profile/page.h"

#include <cstdio>

#include "profile/format.h"

namespace fathom {
namespace {

struct CategoryColour {
  std::string_view category;
  std::string_view css_name;
  std::string_view light;
  std::string_view dark;
};

// Neighbours in a step lie far apart in hue; copies and communication stand out, for they are what one hunts.
constexpr CategoryColour kColours[] = {
    {"attention", "attention", "#2a6fbb", "#5b9be0"},
    {"indexer", "indexer", "#19a3a3", "#3cc4c0"},
    {"experts", "experts", "#e08a1e", "#eba24a"},
    {"router", "router", "#f3c27a", "#8f6a34"},
    {"projections", "projections", "#7a5bb8", "#a58be0"},
    {"hyper-connections", "hyper", "#3f9a4c", "#63bd6e"},
    {"norms and rope", "norms", "#a5b532", "#7f8b2e"},
    {"cache", "cache", "#c768ad", "#d98cc4"},
    {"embedding and head", "head", "#8a6242", "#b28a68"},
    {"drafts", "drafts", "#5f7f95", "#86a6bb"},
    {"sampling", "sampling", "#9fc6e8", "#4d6f8f"},
    {"communication", "communication", "#23314f", "#c7d2ea"},
    {"copies", "copies", "#c8322f", "#ee6a62"},
    {"host", "host", "#8d979d", "#87929a"},
    {"idle", "idle", "#d3dade", "#3c464d"},
    {"unaccounted", "unaccounted", "#b8a9a0", "#6b5f58"},
};
constexpr std::string_view kOtherLight = "#a3adb3", kOtherDark = "#77838b";

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1c2529;--soft:#5d6b72;--line:#dfe4e6;--grid:#e9edee;
--rose:#c4511b;--fell:#1f7a8c;--warn:#8a5a00;--warn-paper:#fff4dc}
@media(prefers-color-scheme:dark){:root{--paper:#14191c;--card:#1b2226;--ink:#e6ebed;--soft:#98a6ad;--line:#2e383d;
--grid:#263035;--rose:#f0894f;--fell:#52b6c6;--warn:#f0c15c;--warn-paper:#2f2917}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:1.5em;margin:0 0 .2em;letter-spacing:-.01em}
h2{font-size:1.08em;margin:2.2em 0 .3em}
p{margin:.3em 0 .7em;max-width:75ch}
.soft,figcaption{color:var(--soft);font-size:.92em}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92em}
th,td{text-align:right;padding:.32em .7em;border-bottom:1px solid var(--line);white-space:nowrap;
font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600}
td:first-child,th:first-child{text-align:left;white-space:normal;overflow-wrap:break-word;min-width:9em}
td.words{text-align:left;white-space:normal;min-width:14em}
.wide{font-size:.84em}.wide th,.wide td{padding:.32em .42em}
@media(max-width:1040px){main{padding:24px 10px 50px}.card{padding:12px 10px}th,td{padding:.32em .4em}
.wide{font-size:.78em;letter-spacing:-.015em}.wide th{white-space:normal}.wide th,.wide td{padding:.32em .2em}
.wide td:first-child,.wide th:first-child{min-width:7em;overflow-wrap:anywhere}}
.rose{color:var(--rose)}.fell{color:var(--fell)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 18px;margin:.8em 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:12px;margin:1em 0}
.tiles .card{margin:0}
.tile-name{color:var(--soft);font-size:.88em}
.tile-value{font-size:1.45em;font-weight:650;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.warn{background:var(--warn-paper);border-color:var(--warn)}
.warn strong{color:var(--warn)}
figure{margin:.6em 0 0}
svg{display:block;width:100%;height:auto}
svg text{font:12.5px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
svg .soft{fill:var(--soft)}svg .small{font-size:11px}svg .strong{font-weight:650}
svg .on-fill{fill:#fff;font-size:11.5px}svg .on-pale{fill:#1c2529;font-size:11.5px}
svg .axis{stroke:var(--soft);stroke-width:1}svg .grid{stroke:var(--grid);stroke-width:1}
svg .fill-rose{fill:var(--rose)}svg .fill-fell{fill:var(--fell)}
svg .line-rose{fill:none;stroke:var(--rose)}svg .line-fell{fill:none;stroke:var(--fell)}
svg .faint{opacity:.38}
svg .whisker{stroke:var(--ink);stroke-width:1.2}
@media(prefers-color-scheme:dark){svg .on-fill{fill:#10171a}svg .on-pale{fill:#f2f5f6}}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:.5em 0;font-size:.9em;color:var(--soft)}
.legend svg{width:11px;height:11px;display:inline-block;margin-right:6px}
details summary{cursor:pointer;color:var(--soft);margin:.8em 0 .4em}
)css";

std::string colours() {
  std::string light = ".cat-other{fill:" + std::string(kOtherLight) + "}\n";
  std::string dark = ".cat-other{fill:" + std::string(kOtherDark) + "}";
  for (const CategoryColour& colour : kColours) {
    const std::string name = ".cat-" + std::string(colour.css_name) + "{fill:";
    light += name + std::string(colour.light) + "}";
    dark += name + std::string(colour.dark) + "}";
  }
  return light + "\n@media(prefers-color-scheme:dark){" + dark + "}\n";
}

}  // namespace

std::string page_begin(std::string_view title) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
         "content=\"width=device-width,initial-scale=1\"><title>" +
         escape_html(title) + "</title><style>" + std::string(kStyle) + colours() + "</style></head><body><main>\n";
}

std::string page_end() { return "</main></body></html>\n"; }

std::string category_class(std::string_view category) {
  for (const CategoryColour& colour : kColours) {
    if (colour.category == category) return "cat-" + std::string(colour.css_name);
  }
  return "cat-other";
}

std::string category_text_class(std::string_view category) {
  for (const std::string_view pale : {"router", "norms and rope", "sampling", "idle", "unaccounted"}) {
    if (category == pale) return "on-pale";
  }
  return "on-fill";
}

std::string legend_item(std::string_view category) {
  return "<span><svg viewBox=\"0 0 11 11\"><rect width=\"11\" height=\"11\" rx=\"2\" class=\"" +
         category_class(category) + "\"/></svg>" + escape_html(category) + "</span>";
}

std::string svg_number(double value) {
  char buffer[352];
  std::snprintf(buffer, sizeof buffer, "%.1f", value);
  return buffer;
}

std::string svg_text(double x, double y, std::string_view text, std::string_view classes, std::string_view anchor) {
  return "<text x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" text-anchor=\"" + std::string(anchor) +
         "\" class=\"" + std::string(classes) + "\">" + escape_html(text) + "</text>";
}

}  // namespace fathom
