//! Tokens with which nodes join the cluster.

use std::collections::BTreeMap;

use piped_core::units::Nanos;

/// Most tokens that are open at one time.
pub const TOKENS_MAX: usize = 256;

/// The digest of a token's secret: tokens are compared by it, so that how long it takes tells
/// nothing of the secret.
pub type Digest = [u8; 32];

/// What a token is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The only name that a node may have that joins with it; none if the node may choose.
    pub name: Option<String>,
    /// Groups that a node is in that joins with it.
    pub groups: Vec<String>,
    /// How many nodes may join with it still.
    pub uses: u32,
    /// Time at which the token ends.
    pub until: Nanos,
}

/// Why a token opens nothing. A stranger is not told which of them it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// There is no such token any more, or never was.
    #[error("no such token: it was never made, is used up, or has ended")]
    Unknown,
    /// The token is for a node of another name.
    #[error("the token is for a node of another name")]
    Name,
    /// There are as many as there may be.
    #[error("there are {TOKENS_MAX} tokens already: wait until some have ended")]
    Full,
}

/// All tokens that are open, by a number that is no secret.
#[derive(Debug, Default)]
pub struct Tokens {
    open: BTreeMap<u64, (Digest, Token)>,
    last: u64,
}

impl Tokens {
    /// Opens a token. Its number.
    ///
    /// # Errors
    /// There are too many.
    pub fn open(&mut self, secret: Digest, token: Token, now: Nanos) -> Result<u64, TokenFault> {
        self.forget(now);
        if self.open.len() >= TOKENS_MAX {
            return Err(TokenFault::Full);
        }
        self.last += 1;
        self.open.insert(self.last, (secret, token));
        Ok(self.last)
    }

    /// The token of this secret, for a node of that name. It is used up by [`Self::take`] only.
    ///
    /// # Errors
    /// There is none, or not for that name.
    pub fn find(&mut self, secret: &Digest, name: &str, now: Nanos) -> Result<Token, TokenFault> {
        self.forget(now);
        let mut all = self.open.values();
        let (_, token) = all.find(|(digest, _)| digest == secret).ok_or(TokenFault::Unknown)?;
        match token.name.as_deref().is_none_or(|only| only == name) {
            true => Ok(token.clone()),
            false => Err(TokenFault::Name),
        }
    }

    /// Counts one use of a token. `false`: there is none left.
    pub fn take(&mut self, secret: &Digest) -> bool {
        let mut all = self.open.values_mut();
        let Some((_, token)) = all.find(|(digest, _)| digest == secret) else { return false };
        token.uses = token.uses.saturating_sub(1);
        self.open.retain(|_, (_, token)| token.uses > 0);
        true
    }

    /// Ends a token by its number. `false`: there is none.
    pub fn close(&mut self, number: u64) -> bool {
        self.open.remove(&number).is_some()
    }

    /// All tokens that are open, by number.
    pub fn iter(&mut self, now: Nanos) -> impl Iterator<Item = (u64, &Token)> {
        self.forget(now);
        self.open.iter().map(|(number, (_, token))| (*number, token))
    }

    fn forget(&mut self, now: Nanos) {
        self.open.retain(|_, (_, token)| token.until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: Option<&str>, uses: u32) -> Token {
        let name = name.map(str::to_owned);
        Token { name, groups: Vec::new(), uses, until: Nanos::from_millis(100) }
    }

    #[test]
    fn a_token_opens_so_often_so_long_and_for_its_name() {
        let (mut tokens, now) = (Tokens::default(), Nanos::ZERO);
        let number = tokens.open([1; 32], token(Some("beta"), 2), now).expect("room");
        assert_eq!(tokens.find(&[2; 32], "beta", now), Err(TokenFault::Unknown));
        assert_eq!(tokens.find(&[1; 32], "gamma", now), Err(TokenFault::Name));
        assert_eq!(tokens.find(&[1; 32], "beta", now).map(|it| it.uses), Ok(2));
        let late = Nanos::from_millis(100);
        assert!(tokens.take(&[1; 32]) && tokens.take(&[1; 32]) && !tokens.take(&[1; 32]));
        assert_eq!(tokens.find(&[1; 32], "beta", now), Err(TokenFault::Unknown));
        assert!(!tokens.close(number));
        tokens.open([1; 32], token(None, 2), now).expect("room");
        assert_eq!(tokens.find(&[1; 32], "beta", late), Err(TokenFault::Unknown), "it has ended");
    }

    #[test]
    fn there_are_only_so_many_tokens() {
        let (mut tokens, now) = (Tokens::default(), Nanos::ZERO);
        for _ in 0..TOKENS_MAX {
            tokens.open([1; 32], token(None, 1), now).expect("room");
        }
        assert_eq!(tokens.open([1; 32], token(None, 1), now), Err(TokenFault::Full));
        assert!(tokens.close(7));
        assert!(tokens.open([1; 32], token(None, 1), now).is_ok());
        assert_eq!(tokens.iter(now).count(), TOKENS_MAX);
    }
}
