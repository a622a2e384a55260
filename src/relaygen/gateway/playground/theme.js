// Light or dark: as the system is set, until the button says otherwise; the choice is kept on this device.

const STORED = "relaygen-theme";

export function themeButton(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(STORED);
  const show = () => {
    const theme = chosen();
    if (theme) document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-pressed", String((theme ?? (system.matches ? "dark" : "light")) === "dark"));
  };
  button.addEventListener("click", () => {
    localStorage.setItem(STORED, button.getAttribute("aria-pressed") === "true" ? "light" : "dark");
    show();
  });
  system.addEventListener("change", show);
  show();
}
