// Light, dark, or as the system says. Remembered in this browser only.

type Choice = 'system' | 'light' | 'dark'

function stored(): Choice {
  try {
    const value = localStorage.getItem('theme')
    return value === 'light' || value === 'dark' ? value : 'system'
  } catch {
    return 'system'
  }
}

export const theme = $state({ choice: stored() })

const dark = window.matchMedia('(prefers-color-scheme: dark)')
dark.addEventListener('change', apply)

export function isDark(): boolean {
  return theme.choice === 'dark' || (theme.choice === 'system' && dark.matches)
}

export function apply() {
  document.documentElement.dataset['theme'] = isDark() ? 'dark' : 'light'
}

export function turn() {
  theme.choice = isDark() ? 'light' : 'dark'
  try {
    localStorage.setItem('theme', theme.choice)
  } catch {
    // Private windows may refuse; the choice then lasts as long as the page.
  }
  apply()
}
