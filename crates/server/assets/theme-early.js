// Sets the chosen theme before the first paint, so that the page does not flash.
try {
  const theme = JSON.parse(localStorage.getItem("latent.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, or with a damaged value, the system's theme is used.
}
