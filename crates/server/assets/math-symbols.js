// TeX commands that stand for one character.

const table = (text) => {
  const map = new Map();
  const parts = text.trim().split(/\s+/);
  for (let i = 0; i < parts.length; i += 2) map.set(parts[i], parts[i + 1]);
  return map;
};

// Letters: italic like variables, except upright capitals.
export const LETTERS = table(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ varkappa ϰ
lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω
Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ beth ℶ wp ℘ imath ı jmath ȷ emptyset ∅ varnothing ∅ forall ∀ exists ∃ nexists ∄
top ⊤ bot ⊥ angle ∠ triangle △ square □ Box □ blacksquare ■ degree ° prime ′ hslash ℏ eth ð mho ℧ checkmark ✓ dagger † ddagger ‡ S § P ¶
ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ dotsm ⋯ lbrace { rbrace } pounds £ euro € copyright © flat ♭ natural ♮ sharp ♯ clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ bigstar ★`);

// Operators and relations.
export const OPERATORS = table(`pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ dagger † cap ∩ cup ∪
uplus ⊎ sqcap ⊓ sqcup ⊔ vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ smallsetminus ∖ wr ≀ diamond ⋄ amalg ⨿ neg ¬ lnot ¬ bmod mod
leq ≤ le ≤ geq ≥ ge ≥ leqslant ⩽ geqslant ⩾ ll ≪ gg ≫ lll ⋘ ggg ⋙ neq ≠ ne ≠ equiv ≡ sim ∼ simeq ≃ approx ≈ approxeq ≊ cong ≅ propto ∝ asymp ≍ doteq ≐ prec ≺ succ ≻ preceq ⪯ succeq ⪰
subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ sqsubseteq ⊑ sqsupseteq ⊒ in ∈ notin ∉ ni ∋ nsubseteq ⊈ mid ∣ nmid ∤ parallel ∥ nparallel ∦ perp ⟂ vdash ⊢ dashv ⊣ models ⊨ vDash ⊨ Vdash ⊩ bowtie ⋈ smile ⌣ frown ⌢
lesssim ≲ gtrsim ≳ triangleq ≜ coloneqq ≔ coloneq ≔ eqqcolon ≕ because ∵ therefore ∴ nless ≮ ngtr ≯ nleq ≰ ngeq ≱ between ≬ ltimes ⋉ rtimes ⋊ lhd ⊲ rhd ⊳ trianglelefteq ⊴ trianglerighteq ⊵ models ⊨
to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby ⟸ iff ⟺ mapsto ↦ longmapsto ⟼ longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftarrow ⟸ longleftrightarrow ⟷ Longleftrightarrow ⟺
uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖ hookrightarrow ↪ hookleftarrow ↩ rightharpoonup ⇀ leftharpoonup ↼ rightleftharpoons ⇌ leadsto ⇝ rightsquigarrow ⇝ twoheadrightarrow ↠ rightrightarrows ⇉ upharpoonright ↾ nrightarrow ↛ nRightarrow ⇏ colon : lt < gt > surd √`);

// Large operators. In display style their limits are above and below.
export const LARGE = table(`sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigodot ⨀ bigvee ⋁ bigwedge ⋀ bigsqcup ⨆ biguplus ⨄`);
export const INTEGRALS = table(`int ∫ iint ∬ iiint ∭ oint ∮ oiint ∯ intop ∫`);

export const FUNCTIONS = new Set("arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh tan tanh argmax argmin softmax sgn tr rank diag".split(" "));
export const LIMIT_FUNCTIONS = new Map([..."det gcd inf lim max min Pr sup".split(" ").map((name) => [name, name]), ["liminf", "lim inf"], ["limsup", "lim sup"], ["argmax", "arg max"], ["argmin", "arg min"]]);

export const DELIMITERS = table(`lbrace { rbrace } { { } } langle ⟨ rangle ⟩ lvert | rvert | vert | lVert ‖ rVert ‖ Vert ‖ | ‖ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrack [ rbrack ] lgroup ⟮ rgroup ⟯ uparrow ↑ downarrow ↓ Uparrow ⇑ Downarrow ⇓ updownarrow ↕ backslash \\ ulcorner ⌜ urcorner ⌝ llcorner ⌞ lrcorner ⌟`);

export const ACCENTS = table(`hat ^ widehat ^ check ˇ tilde ~ widetilde ~ acute ´ grave \` dot ˙ ddot ¨ dddot ⃛ breve ˘ bar ¯ overline ‾ vec → overrightarrow → overleftarrow ← overbrace ⏞ mathring ˚`);
export const UNDERS = table(`underline _ underbrace ⏟ underbar _`);

// Widths of spaces in em.
export const SPACES = new Map([[",", 0.167], [":", 0.222], [">", 0.222], [";", 0.278], ["!", -0.167], ["quad", 1], ["qquad", 2], ["enspace", 0.5], ["thinspace", 0.167], ["medspace", 0.222], ["thickspace", 0.278], [" ", 0.333], ["~", 0.333], ["negthinspace", -0.167], ["nobreakspace", 0.333], ["space", 0.333]]);

// First code points of each alphabet [capitals, small letters, digits], and letters that Unicode
// has elsewhere.
const ALPHABETS = {
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  mathcal: [0x1d49c, 0x1d4b6, 0, { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }],
  mathfrak: [0x1d504, 0x1d51e, 0, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, {}],
  boldsymbol: [0x1d468, 0x1d482, 0x1d7ce, {}],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2, {}],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6, {}],
};
const SAME = { mathscr: "mathcal", bm: "boldsymbol", pmb: "boldsymbol", Bbb: "mathbb", mathbold: "mathbf", textbf: "mathbf" };

const BOLD_GREEK = new Map([..."αβγδεζηθικλμνξοπρςστυφχψω"].map((c, i) => [c, String.fromCodePoint(0x1d736 + i)]));

export const isAlphabet = (name) => Object.hasOwn(ALPHABETS, name) || Object.hasOwn(SAME, name);

export function inAlphabet(character, name) {
  const key = SAME[name] ?? name;
  const [capital, small, digit, odd] = ALPHABETS[key];
  if (Object.hasOwn(odd, character)) return odd[character];
  if (/^[A-Z]$/.test(character)) return String.fromCodePoint(capital + character.charCodeAt(0) - 65);
  if (/^[a-z]$/.test(character)) return String.fromCodePoint(small + character.charCodeAt(0) - 97);
  if (/^\d$/.test(character) && digit) return String.fromCodePoint(digit + character.charCodeAt(0) - 48);
  if (key === "boldsymbol" || key === "mathbf") return BOLD_GREEK.get(character) ?? character;
  return character;
}
