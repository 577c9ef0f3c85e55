// One line at the foot of the page that says what was just done.

export const said = $state({ text: '', at: 0 })

export function say(text: string) {
  said.text = text
  said.at = Date.now()
  const mine = said.at
  setTimeout(() => {
    if (said.at === mine) said.text = ''
  }, 6000)
}
