//! Patterns of names, as shells have them: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a character
//! that is meant as it is. They are matched over bytes, since names are bytes.

/// A pattern for one component of a path.
#[derive(Debug)]
pub(super) struct Pattern {
    tokens: Vec<Token>,
}

#[derive(Debug)]
enum Token {
    /// Any bytes, and none at all.
    Any,
    /// One character of any length.
    One,
    /// One byte in, or not in, ranges.
    Class {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
    Byte(u8),
}

impl Pattern {
    /// Reads a component; none if it is a plain name.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (tokens, is_pattern) = tokens(text);
        is_pattern.then_some(Self { tokens })
    }

    /// Whether a name has the pattern. A name that begins with a dot needs one in the pattern.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let dotted = matches!(self.tokens.first(), Some(Token::Byte(b'.')));
        if name.first() == Some(&b'.') && !dotted {
            return false;
        }
        // Where to go on if the bytes after the last `*` do not match: one byte later.
        let mut retry: Option<(usize, usize)> = None;
        let (mut token, mut at) = (0, 0);
        loop {
            let step = match self.tokens.get(token) {
                Some(Token::Any) => {
                    retry = Some((token + 1, at));
                    Some(0)
                }
                Some(one) => one.length(&name[at..]),
                None if at == name.len() => return true,
                None => None,
            };
            match (step, retry) {
                (Some(bytes), _) => (token, at) = (token + 1, at + bytes),
                (None, Some((behind, from))) if from < name.len() => {
                    retry = Some((behind, from + 1));
                    (token, at) = (behind, from + 1);
                }
                (None, _) => return false,
            }
        }
    }
}

impl Token {
    /// How many bytes at the start of the text it stands for; none if it does not.
    fn length(&self, text: &[u8]) -> Option<usize> {
        let first = *text.first()?;
        match self {
            Self::Any => Some(0),
            Self::One => {
                let character = text.utf8_chunks().next()?.valid().chars().next();
                Some(character.map_or(1, char::len_utf8))
            }
            Self::Class { ranges, negated } => {
                let is_in = ranges.iter().any(|&(from, to)| (from..=to).contains(&first));
                (is_in != *negated).then_some(1)
            }
            Self::Byte(byte) => (first == *byte).then_some(1),
        }
    }
}

/// A component as a plain name: without the backslashes.
pub(super) fn plain(text: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        name.push(if byte == b'\\' { *bytes.next().unwrap_or(&byte) } else { byte });
    }
    name
}

/// The tokens, and whether one of them is not a byte.
fn tokens(text: &[u8]) -> (Vec<Token>, bool) {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        tokens.push(match (byte, behind.first()) {
            (b'\\', Some(&escaped)) => {
                rest = &behind[1..];
                Token::Byte(escaped)
            }
            (b'*', _) => Token::Any,
            (b'?', _) => Token::One,
            (b'[', _) => match class(behind) {
                Some((class, after)) => {
                    rest = after;
                    class
                }
                // Without an end it is a bracket.
                None => Token::Byte(byte),
            },
            _ => Token::Byte(byte),
        });
    }
    let is_pattern = tokens.iter().any(|token| !matches!(token, Token::Byte(_)));
    (tokens, is_pattern)
}

/// The class behind a bracket, and what follows it.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = &text[usize::from(negated)..];
    let mut ranges = Vec::new();
    loop {
        match rest {
            // The first one is meant as it is.
            [b']', behind @ ..] if !ranges.is_empty() => {
                return Some((Token::Class { ranges, negated }, behind));
            }
            [from, b'-', to, behind @ ..] if *to != b']' => {
                ranges.push((*from, *to));
                rest = behind;
            }
            [byte, behind @ ..] => {
                ranges.push((*byte, *byte));
                rest = behind;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern.as_bytes()).expect(pattern).matches(name.as_bytes())
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, yes, no) in [
            ("*", &["a", "a.log"][..], &[".a"][..]),
            ("*.log", &["a.log", "a.log.log"], &["a.logs", ".log", "alog"]),
            ("a*b*c", &["abc", "aXbXbXc"], &["ab", "abcX", "Xabc"]),
            (".*", &[".a", "."], &["a"]),
            ("?", &["a", "é"], &["ab", ""]),
            ("[a-c]?", &["bx"], &["dx", "b"]),
            ("[!a-c]x", &["dx"], &["ax"]),
            ("[]]*", &["]", "]a"], &["a"]),
            ("\\*?", &["*a"], &["aa"]),
            ("**a", &["a", "ba"], &["b"]),
            ("[a-]?", &["-x", "ax"], &["bx"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} and {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} and {name}");
            }
        }
    }

    #[test]
    fn names_are_no_patterns_and_may_be_escaped() {
        for name in ["a", "a[1", "\\*", "a\\[1\\]", ""] {
            assert!(Pattern::parse(name.as_bytes()).is_none(), "{name}");
        }
        assert_eq!(plain(b"a\\[1\\]"), b"a[1]");
        assert_eq!(plain(b"a\\"), b"a\\");
        assert!(matches("\\[*", "[x"));
    }

    #[test]
    fn many_stars_take_no_longer_than_few() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!matches(&pattern, &"a".repeat(4000)));
    }
}
