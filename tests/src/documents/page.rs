//! A document in Markdown, taken apart.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// What a document has that can be tried.
#[derive(Debug, Default)]
pub struct Page {
    /// Path from the project's root.
    pub name: String,
    /// Code, in its order.
    pub blocks: Vec<Block>,
    /// Where links and pictures lead, with their lines.
    pub links: Vec<(usize, String)>,
    /// Where links may lead: headings, as GitHub names them.
    pub anchors: BTreeSet<String>,
    /// What stands in `code` in the text, with its line.
    pub words: Vec<(usize, String)>,
    /// What the comment says that stands before anything else.
    pub rule: Option<String>,
}

/// A block of code.
#[derive(Debug, Default)]
pub struct Block {
    /// Number of the block's first line in its document.
    pub line: usize,
    /// The language of the block, such as `sh` or `text`; empty for an indented block.
    pub language: String,
    /// The text as the document prints it.
    pub text: String,
    /// The rule in a comment right before the block.
    pub rule: Option<String>,
    /// The `text` block that follows immediately: the output that the document shows.
    pub shown: Option<String>,
}

const COMMENT: &str = "<!-- doc-test:";

impl Page {
    /// Takes a document apart.
    #[must_use]
    pub fn read(name: &str, text: &str) -> Self {
        let mut page = Self { name: name.to_owned(), ..Self::default() };
        let (mut rule, mut heading, mut headings) = (None, None::<String>, BTreeMap::new());
        let mut inside = None::<Block>;
        // Whether nothing came between the last block and what comes.
        let mut adjacent = false;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let (language, line) = match kind {
                        CodeBlockKind::Fenced(language) => (language.to_string(), line + 1),
                        CodeBlockKind::Indented => (String::new(), line),
                    };
                    let rule = rule.take();
                    inside = Some(Block { line, language, rule, ..Block::default() });
                }
                Event::End(TagEnd::CodeBlock) => {
                    let block = inside.take().expect("it began");
                    if let Some(last) = page.blocks.last_mut().filter(|_| adjacent)
                        && block.language == "text"
                    {
                        last.shown = Some(block.text.clone());
                    }
                    adjacent = true;
                    page.blocks.push(block);
                }
                Event::Text(part) if inside.is_some() => {
                    inside.as_mut().expect("looked").text.push_str(&part);
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    if let Some(said) = html.trim().strip_prefix(COMMENT) {
                        let said = said.trim_end_matches("-->").trim().to_owned();
                        if page.blocks.is_empty() && headings.is_empty() {
                            page.rule = Some(said);
                        } else {
                            rule = Some(said);
                        }
                    }
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().expect("it began"));
                    let before = headings.entry(slug.clone()).or_insert(0_usize);
                    let numbered = if *before == 0 { slug } else { format!("{slug}-{before}") };
                    *before += 1;
                    page.anchors.insert(numbered);
                    adjacent = false;
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.to_string()));
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.words.push((line, code.to_string()));
                    adjacent = false;
                }
                Event::Text(part) => {
                    assert!(
                        rule.is_none(),
                        "{name}, line {line}: a rule stands right before its block"
                    );
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                    adjacent = false;
                }
                _ => {}
            }
        }
        assert!(rule.is_none(), "{name}: no block follows {rule:?}");
        page
    }
}

/// As GitHub makes a heading's anchor.
fn slug(heading: &str) -> String {
    let kept = heading.chars().flat_map(char::to_lowercase);
    let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "<!-- doc-test: nodes -->\n# A `b` c, d!\n\nSee [there](x.md#y) and \
                        `pipectl status`.\n\n<!-- doc-test: fails 4 -->\n```sh\none\ntwo\n```\n\n\
                        ```text\nthree\n```\n\n    four\n\n## A b c d\n";

    #[test]
    fn a_document_is_taken_apart() {
        let page = Page::read("p.md", TEXT);
        assert_eq!(page.rule.as_deref(), Some("nodes"));
        assert_eq!(page.links, [(4, "x.md#y".to_owned())]);
        assert_eq!(page.words[1], (4, "pipectl status".to_owned()));
        assert!(page.anchors.contains("a-b-c-d") && page.anchors.contains("a-b-c-d-1"));
        let [sh, text, indented] = &page.blocks[..] else { panic!("{:?}", page.blocks) };
        assert_eq!((sh.line, sh.text.as_str(), sh.language.as_str()), (8, "one\ntwo\n", "sh"));
        assert_eq!((sh.rule.as_deref(), sh.shown.as_deref()), (Some("fails 4"), Some("three\n")));
        assert_eq!((text.language.as_str(), indented.language.as_str()), ("text", ""));
        assert_eq!(indented.shown, None);
    }
}
