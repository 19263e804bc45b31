//! Rules about items: their docs, fields and methods, and the length of files.

use std::collections::BTreeMap;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::{Finding, Source};

/// Lines a file may have without its tests.
pub const LINES_MAX: usize = 500;

/// Fields a struct inside a crate may have: more are several components.
pub const FIELDS_MAX: usize = 22;

/// Words a doc comment has at least.
const WORDS_MIN: usize = 4;

/// The facade of the engine: its methods are in its own file, and in modules below `flows` beside
/// it (decision 0159).
const FACADE: &str = "Shard";

/// The name of the module that has the flows of [`FACADE`].
const FLOWS: &str = "flows";

/// Words that stand for something said elsewhere: a doc comment is read alone.
const PRONOUNS: &[&str] = &[
    "It", "Its", "They", "Their", "Those", "These", "That", "This", "He", "She", "Who", "Whose",
    "Of", "Same", "Also", "As",
];

/// Pronouns with a noun behind them are fine: "This node's name". These words are no nouns.
const NO_NOUNS: &[&str] = &[
    "is", "are", "was", "were", "has", "have", "had", "does", "do", "did", "can", "may", "must",
    "that", "which", "of", "in", "to", "the", "a", "an", "whose", "who", "will", "for",
];

/// Whether an item is compiled for tests only.
#[must_use]
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("cfg")
            && matches!(&it.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

/// The attributes of an item; none for those that have none.
#[must_use]
pub fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        syn::Item::Const(it) => &it.attrs,
        syn::Item::Macro(it) => &it.attrs,
        _ => &[],
    }
}

/// How many lines an item takes.
#[must_use]
pub fn lines_of(item: &syn::Item) -> usize {
    let span = item.span();
    span.end().line + 1 - span.start().line
}

/// Files with too many lines.
#[must_use]
pub fn long_files(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .filter_map(|it| {
            let lines = it.text.lines().count().saturating_sub(it.test_lines);
            let what = format!("{lines} lines without tests, {LINES_MAX} at most");
            (lines > LINES_MAX).then(|| it.finding(0, what))
        })
        .collect()
}

/// Doc comments that say nothing to a reader who has only them.
#[must_use]
pub fn empty_docs(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .flat_map(|source| {
            let mut docs = Docs::default();
            source.items.iter().for_each(|item| docs.visit_item(item));
            let comments = comments(docs.lines);
            let faults = comments.into_iter().filter_map(|(line, text)| {
                Some(source.finding(line, format!("{}: {}", fault_of(&text)?, text.trim())))
            });
            faults.collect::<Vec<_>>()
        })
        .collect()
}

/// Lines of doc comments, by their numbers.
#[derive(Default)]
struct Docs {
    lines: BTreeMap<usize, String>,
}

/// Whole comments, each with the number of its first line: between two of them is what the first
/// one is about.
fn comments(lines: BTreeMap<usize, String>) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (line, text) in lines {
        match comments.last_mut() {
            Some((_, comment)) if line == last + 1 => *comment += &text,
            _ => comments.push((line, text)),
        }
        last = line;
    }
    comments
}

/// What is wrong with the text of a doc comment.
fn fault_of(text: &str) -> Option<&'static str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.len() < WORDS_MIN {
        return Some("fewer than four words");
    }
    let first = words[0].trim_end_matches([',', '.', ';', ':']);
    let second = words[1];
    let alone = NO_NOUNS.contains(&second) || second.ends_with(',') || words[0] != first;
    let always = ["It", "They", "He", "She", "Who", "Whose", "Of"].contains(&first);
    if PRONOUNS.contains(&first) && (alone || always) {
        return Some("begins with a pronoun without a noun");
    }
    (text.trim_start().starts_with("The same ")).then_some("begins with \"The same\"")
}

impl<'a> Visit<'a> for Docs {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value
        {
            self.lines.insert(attribute.span().start().line, text.value());
        }
    }
}

/// Fields that more than their own file sees, but that are no part of a crate's interface.
#[must_use]
pub fn shared_fields(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .flat_map(|source| {
            let mut fields = Fields::default();
            source.items.iter().for_each(|item| fields.visit_item(item));
            fields.found.into_iter().map(|(line, what)| source.finding(line, what))
        })
        .collect()
}

#[derive(Default)]
struct Fields {
    found: Vec<(usize, String)>,
}

impl<'a> Visit<'a> for Fields {
    fn visit_field(&mut self, field: &'a syn::Field) {
        if let syn::Visibility::Restricted(it) = &field.vis
            && (it.in_token.is_some() || it.path.is_ident("super"))
        {
            let name = field.ident.as_ref().map_or_else(|| "0".to_owned(), ToString::to_string);
            let what = format!("`{name}` is for other files of its crate");
            self.found.push((field.span().start().line, what));
        }
    }
}

/// Structs of more than [`FIELDS_MAX`] fields that are no part of a crate's interface.
#[must_use]
pub fn large_structs(sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for source in sources {
        for item in &source.items {
            let syn::Item::Struct(it) = item else { continue };
            let (fields, inside) = (it.fields.len(), !matches!(it.vis, syn::Visibility::Public(_)));
            if inside && fields > FIELDS_MAX {
                let what = format!("`{}` has {fields} fields", it.ident);
                found.push(source.finding(it.span().start().line, what));
            }
        }
    }
    found
}

/// Methods of the facade that are neither in its file nor in its flows.
#[must_use]
pub fn facade_elsewhere(sources: &[Source]) -> Vec<Finding> {
    scattered(sources, |name, in_flow| name == FACADE && !in_flow)
}

/// Methods of a type that are not in the file of the type; of the facade, see [`facade_elsewhere`].
#[must_use]
pub fn scattered_methods(sources: &[Source]) -> Vec<Finding> {
    scattered(sources, |name, _| name != FACADE)
}

/// Methods of wanted types that are not in the file of the type. `wanted` is told whether they are
/// in a flow of it.
fn scattered(sources: &[Source], wanted: impl Fn(&str, bool) -> bool) -> Vec<Finding> {
    let mut homes: BTreeMap<String, Vec<&[String]>> = BTreeMap::new();
    for source in sources {
        for item in &source.items {
            let name = match item {
                syn::Item::Struct(it) => &it.ident,
                syn::Item::Enum(it) => &it.ident,
                _ => continue,
            };
            homes.entry(name.to_string()).or_default().push(&source.module);
        }
    }
    let mut found = Vec::new();
    for source in sources {
        for item in &source.items {
            let syn::Item::Impl(it) = item else { continue };
            let syn::Type::Path(path) = &*it.self_ty else { continue };
            let (None, Some(last)) = (&it.trait_, path.path.segments.last()) else { continue };
            let name = last.ident.to_string();
            let Some(homes) = homes.get(&name) else { continue };
            let place = source.module.iter().position(|part| part == FLOWS);
            let of_flow = place.map(|place| &source.module[..place]);
            let in_flow = homes.iter().any(|home| of_flow == Some(*home));
            if homes.iter().any(|home| source.module == **home) || !wanted(&name, in_flow) {
                continue;
            }
            for method in &it.items {
                if let syn::ImplItem::Fn(method) = method {
                    let line = method.span().start().line;
                    let method = &method.sig.ident;
                    found.push(
                        source.finding(
                            line,
                            format!("{name}::{method} is not in the file of {name}"),
                        ),
                    );
                }
            }
        }
    }
    found
}
