//! Filters of Jinja2, and `tojson` as transformers replaces it.

mod arguments;
mod numbers;
mod order;
mod select;
mod sequence;
mod text;

use crate::runtime::FilterFn;

pub(crate) fn find(name: &str) -> Option<FilterFn> {
    Some(match name {
        "abs" => numbers::abs,
        "attr" => sequence::attr,
        "batch" => sequence::batch,
        "capitalize" => text::capitalize,
        "center" => text::center,
        "count" | "length" => sequence::length,
        "d" | "default" => sequence::default,
        "dictsort" => order::dictsort,
        // Equal here, since no text is marked as escaped already.
        "e" | "escape" | "forceescape" => text::escape,
        "first" => sequence::first,
        "float" => numbers::float,
        "format" => text::format,
        "groupby" => order::groupby,
        "indent" => text::indent,
        "int" => numbers::int,
        "items" => sequence::items,
        "join" => sequence::join,
        "last" => sequence::last,
        "list" => sequence::list,
        "lower" => text::lower,
        "map" => select::map,
        "max" => order::max,
        "min" => order::min,
        "pprint" => text::pprint,
        "reject" => select::reject,
        "rejectattr" => select::rejectattr,
        "replace" => text::replace,
        "reverse" => sequence::reverse,
        "round" => numbers::round,
        "safe" | "string" => text::string,
        "select" => select::select,
        "selectattr" => select::selectattr,
        "slice" => sequence::slice,
        "sort" => order::sort,
        "sum" => numbers::sum,
        "title" => text::title,
        "tojson" => text::tojson,
        "trim" => text::trim,
        "truncate" => text::truncate,
        "unique" => order::unique,
        "upper" => text::upper,
        "urlencode" => text::urlencode,
        "wordcount" => text::wordcount,
        _ => return None,
    })
}
